"""Gates and rewiring together, in your own loop: RigL chooses the connections, gates choose the units for each input.

Needs scikit-learn for the data. Three lines more than a loop with gates: make the sparsifier, `watch`, `step`.
"""

import torch
from torch import nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.lab.datasets.loading import load_dataset

torch.manual_seed(0)
digits = load_dataset("digits")  # 8 x 8 images that ship with scikit-learn
model = nn.Sequential(dg.nn.Normalize(digits.mean, digits.std), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

dg.gate_(model, dg.GateConfig(block=8, net="low-rank", rank=3))
sparsifier = dg.RigL(model, density=0.3, every=25)  # 1: after the gates, whose open rates it has to know
budget = dg.Budget(target=0.25)  # executed MACs relative to dense: missing connections and closed units both count
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
print(sparsifier, "\n")

epochs, batch = 30, 32
total = epochs * len(digits.train) // batch
for step in range(total):
    rows = torch.randint(len(digits.train), (batch,))
    x, y, progress = digits.train.rows(rows), digits.train.y[rows], step / total
    budget.apply_(model, progress)
    with dg.usage(model) as used:
        loss = F.cross_entropy(model(x), y)
    penalty = budget.penalty(used, progress)
    sparsifier.watch(used, penalty)  # 2: what was open, and what part of the gradient is not the task's
    (loss + penalty).backward()
    sparsifier.step(optimizer, progress)  # 3: between backward and the optimizer
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % (total // 6) == 0:
        seen = sparsifier.rows()["1"]
        print(
            f"{progress:4.0%}  loss {loss.item():.3f}  MACs {budget.relative:.3f} of dense  "
            f"connections {sparsifier.layers[0].count}  explored {seen['explored']:.2f}  churn {seen['churn']:.2f}"
        )

reached = budget.calibrate_(model, digits.valid.rows(torch.arange(len(digits.valid))).split(1024))
print(f"calibrated to {reached:.4f} after {sparsifier.updates} updates\n")
print(dg.measure(model, digits.test))

layer = model[1]
assert isinstance(layer, nn.Linear)
print(f"\nweights that are not zero: {int(layer.weight.count_nonzero())} of {layer.weight.numel()}")
