"""Train a model that stops early, and run it in onnxruntime. Needs the extra onnx, and scikit-learn for the data."""

import tempfile
from pathlib import Path

import onnxruntime
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.export import to_onnx
from dynamicgate.lab.datasets.loading import load_dataset

torch.manual_seed(0)
digits = load_dataset("digits")  # 8 x 8 images that ship with scikit-learn
model = nn.Sequential(
    dg.nn.Normalize(digits.mean, digits.std),
    *(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)),
)
dg.gate_(model, dg.GateConfig(kind="stages", stages=(0.125, 0.25, 0.625)))
dg.fit(model, digits.train, valid=digits.valid, budget=dg.Budget(target=0.15), epochs=15, batch=32)

x, y = next(iter(digits.test.batches(360)))
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.onnx"
    print(to_onnx(model, x, path))  # verified in onnxruntime before it is written
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
(outputs,) = session.run(None, {"x": x.numpy()})
accuracy = (torch.from_numpy(outputs).argmax(1) == y).double().mean()
print(f"accuracy in onnxruntime {accuracy:.4f}, in torch {dg.measure(model, (x, y)).accuracy:.4f}")
