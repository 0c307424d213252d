"""Easy inputs stop early, hard ones get more of the network. Needs scikit-learn for the data."""

import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.lab.datasets.loading import load_dataset

torch.manual_seed(0)
digits = load_dataset("digits")  # 8 x 8 images that ship with scikit-learn
model = nn.Sequential(
    dg.nn.Normalize(digits.mean, digits.std),
    *(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)),
)

dg.gate_(model, dg.GateConfig(kind="stages", stages=(0.125, 0.25, 0.625)))  # units of both hidden layers
budget = dg.Budget(target=0.15)  # the mean over inputs; the cut between easy and hard follows from it
dg.fit(model, digits.train, valid=digits.valid, budget=budget, epochs=25, batch=32)

found = dg.measure(model, digits.test)
print(found)
assert found.stages is not None
print(f"\nwith the same stops dealt to inputs at random the accuracy would be {found.stages['random']:.4f}")

print("\nthe same model at other cuts:\n  MACs   accuracy  opened stage 2, stage 3")
for point in [*found.curve[:8], found.curve[-1]]:
    opened = ", ".join(f"{rate:4.0%}" for rate in point["open"][1:])
    print(f"  {point['relative']:.3f}  {point['accuracy']:.4f}    {opened}")

reached = dg.calibrate_(model, digits.valid, macs=0.08)  # the model moves along its curve without training
again = dg.measure(model, digits.test)
print(f"\ncalibrated to {reached:.3f}: accuracy {again.accuracy:.4f} at {again.relative:.3f} of the dense MACs")
