"""Train a gated network, compile it for this machine, and see that it answers the same, faster. Needs scikit-learn."""

import tempfile
from pathlib import Path

import torch

import dynamicgate as dg
from dynamicgate.lab.datasets.loading import load_dataset

torch.manual_seed(0)
digits = load_dataset("digits")  # 8 x 8 images that ship with scikit-learn
normalize = dg.nn.Normalize(digits.mean, digits.std)
model = dg.nn.GatedMLP((64, 512, 10), dg.GateConfig(block=32, net="linear"), normalize=normalize)
dg.fit(model, digits.train, valid=digits.valid, budget=dg.Budget(target=0.25), epochs=8, batch=32)

x, y = digits.test.x, digits.test.y
fast = dg.compile(model, example=x)  # checked against the model, timed; the model itself is not changed
print(fast.plan)

with torch.no_grad():
    scores, same = model.eval()(x), fast(x)
print(f"\naccuracy {float((same.argmax(1) == y).float().mean()):.4f}")
print(f"answers that differ: {int((scores.argmax(1) != same.argmax(1)).sum())}, largest difference of a score: "
      f"{float((scores - same).abs().max()):.1e}")  # fmt: skip

with tempfile.TemporaryDirectory() as folder:
    fast.save(Path(folder) / "fast.safetensors")
    again = dg.inference.CompiledModel.load(Path(folder) / "fast.safetensors")  # no model class needed, same bits
assert torch.equal(again(x), same)
