"""The recipe: a fifth of the multiplications from a budget and nothing else, compiled for the CPU.

Needs scikit-learn for the data. Any model of linear layers will do; its parameters keep their names.
"""

import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.lab.datasets.loading import load_dataset

torch.manual_seed(0)
digits = load_dataset("digits")  # 8 x 8 images that ship with scikit-learn
model = nn.Sequential(dg.nn.Normalize(digits.mean, digits.std), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))

budget, sparsifier = dg.recipe_(model, 0.2, every=50)  # in place: gates, sparse layers, and what steers both
dg.fit(model, digits.train, valid=digits.valid, budget=budget, sparsifier=sparsifier, epochs=40, batch=32, lr=4e-3)

print(dg.measure(model, digits.test))
print(dg.compile(model.eval(), digits.test.rows(torch.arange(64)), seconds=2).plan)
