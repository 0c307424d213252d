"""Gates and dynamic sparse training in your own loop: RigL chooses the connections, gates choose the units per input.

Three more lines than a loop with gates alone: create the sparsifier, `watch`, `step`. `dg.sparsity.SET`, which regrows
connections at random, is used in the same way. Needs scikit-learn for the data.
"""

import torch
from torch import nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.lab.datasets.loading import load_dataset

torch.manual_seed(0)
digits = load_dataset("digits")  # 8 x 8 images that ship with scikit-learn
model = nn.Sequential(dg.nn.Normalize(digits.mean, digits.std), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

dg.gate_(model, dg.GateConfig(block=8, net="low-rank", rank=3), where=dg.where.hidden)
sparsifier = dg.RigL(model, density=0.3, every=25)  # 1: after the gates, because it uses their open rates
budget = dg.Budget(target=0.25)  # executed MACs relative to dense: missing connections and closed units both save
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
print(sparsifier, "\n")

epochs, batch = 15, 32
total = epochs * len(digits.train) // batch
for step in range(total):
    rows = torch.randint(len(digits.train), (batch,))
    x, y, progress = digits.train.rows(rows), digits.train.y[rows], step / total
    budget.apply_(model, progress)
    with dg.usage(model) as used:
        loss = F.cross_entropy(model(x), y)
    penalty = budget.step(used, progress)
    sparsifier.watch(used, penalty)  # 2: which units were open, and which part of the gradient is the penalty's
    (loss + penalty).backward()
    sparsifier.step(optimizer, progress)  # 3: prune and regrow, between backward and the optimizer
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % (total // 6) == 0:
        layer = sparsifier.stats()["1"]  # explored: connections tried so far, churn: newly grown ones (fractions)
        print(
            f"{progress:4.0%}  loss {loss.item():.3f}  MACs {budget.relative:.3f} of dense  "
            f"explored {layer['explored']:.2f}  churn {layer['churn']:.2f}"
        )

reached = budget.calibrate_(model, digits.valid)  # shift the gates onto the budget, on held-out data
print(f"calibrated to {reached:.4f} after {sparsifier.updates} updates of the connections\n")
print(dg.measure(model, digits.test))

first = model[1]
assert isinstance(first, nn.Linear)
print(f"\nnonzero weights of the first layer: {int(first.weight.count_nonzero())} of {first.weight.numel()}")
