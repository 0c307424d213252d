"""Train a gated network, compile it for this machine, and see that it gives the same outputs faster.

Needs scikit-learn.
"""

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

fast = dg.compile(model, example=digits.test)  # verified against the model and timed; the model is not changed
print(fast.plan)

x, y = digits.test.x, digits.test.y
with torch.no_grad():
    expected, outputs = model.eval()(x), fast(x)
print(f"\naccuracy {float((outputs.argmax(1) == y).float().mean()):.4f}")
print(f"predictions that differ: {int((expected.argmax(1) != outputs.argmax(1)).sum())}, "
      f"largest difference of an output: {float((expected - outputs).abs().max()):.1e}")  # fmt: skip

with tempfile.TemporaryDirectory() as folder:
    fast.save(Path(folder) / "fast.safetensors")
    again = dg.inference.CompiledModel.load(Path(folder) / "fast.safetensors")  # no model class needed, same bits
assert torch.equal(again(x), outputs)
