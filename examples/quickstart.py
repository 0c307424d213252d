"""Gate an ordinary network, train it to a budget, and measure what it executes. Needs scikit-learn for the data."""

import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.lab.datasets.loading import load_dataset

torch.manual_seed(0)
digits = load_dataset("digits")  # 8 x 8 images that ship with scikit-learn
model = nn.Sequential(dg.nn.Normalize(digits.mean, digits.std), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

dg.gate_(model, dg.GateConfig(net="low-rank", rank=3))  # in place; the parameters of the network keep their names
budget = dg.Budget(target=0.3)  # executed MACs relative to dense, gate networks and output layer included
dg.fit(model, digits.train, valid=digits.valid, budget=budget, epochs=40, batch=32)

print(dg.measure(model, digits.test))
