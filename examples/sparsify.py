"""One call for a fifth of the multiplications: dynamic sparse training, and gates where they pay on these data; then a
compiled model for the CPU.

Needs scikit-learn for the data. Works on any stack of linear layers; their parameters keep their names.
"""

import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.lab.datasets.loading import load_dataset

torch.manual_seed(0)
digits = load_dataset("digits")  # 8 x 8 images that ship with scikit-learn
model = nn.Sequential(dg.nn.Normalize(digits.mean, digits.std), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))

# in place: tries on training rows which gates pay, adds them and masks, and returns what fit needs
plan = dg.sparsify_(model, macs=0.2, data=digits.train, valid=digits.valid, every=50)
print(plan, "\n")
dg.fit(model, digits.train, valid=digits.valid, **plan, epochs=20, batch=32, lr=4e-3)

print(dg.measure(model, digits.test), "\n")
fast = dg.compile(model.eval(), digits.test.rows(torch.arange(64)), seconds=2)  # verified against the model, and timed
print(fast.plan)
