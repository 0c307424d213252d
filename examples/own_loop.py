"""Gates in your own training loop: four more lines than without. Synthetic data, so nothing but the core is needed.

Each input belongs to one of four regimes, and each regime has its own rule for the label. A gate that reads the input
can run a different part of the network for each regime; a network without gates runs all of it for every input.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg


def regimes(rows: int, seed: int, features: int = 28) -> tuple[Tensor, Tensor]:
    """Features followed by a one-hot regime; the label is the side of the regime's own hyperplane."""
    normals = torch.randn(4, features, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    x, regime = torch.randn(rows, features, generator=generator), torch.randint(4, (rows,), generator=generator)
    y = ((x * normals[regime]).sum(1) > 0).long()
    return torch.cat([x, 3.0 * F.one_hot(regime, 4)], dim=1), y


torch.manual_seed(0)
x_train, y_train = regimes(12_288, seed=1)
x_valid, y_valid = regimes(2_048, seed=2)
x_test, y_test = regimes(4_096, seed=3)

model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 2))
dg.gate_(model, dg.GateConfig(net="low-rank", rank=4))
budget = dg.Budget(target=0.4)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

epochs, batch = 10, 128
total = epochs * len(x_train) // batch
for step in range(total):
    rows = torch.randint(len(x_train), (batch,))
    x, y, progress = x_train[rows], y_train[rows], step / total
    budget.apply_(model, progress)  # 1: before the forward pass, set tau and theta of the gates
    with dg.usage(model) as used:  # 2: record what the gates decide
        loss = F.cross_entropy(model(x), y)
    (loss + budget.step(used, progress)).backward()  # 3: add the penalty for what was open
    optimizer.step()
    optimizer.zero_grad()
    if step % (total // 6) == 0 or step == total - 1:
        open_rate = float(used["2"].open.mean())
        print(f"{progress:4.0%}  loss {loss.item():.3f}  open {open_rate:.2f}  MACs {budget.relative:.3f} of dense")

reached = budget.calibrate_(model, x_valid)  # 4: shift the gates onto the budget, on held-out data
print(f"calibrated to {reached:.4f}\n")
print(dg.measure(model, (x_test, y_test)))

model.eval()
with dg.usage(model) as used, torch.no_grad():
    model(x_test)
print("\nhow often each of the first 16 units (columns) is open in each regime (rows):")
opened, regime = used["2"].open, x_test[:, 28:].argmax(1)
for r in range(4):
    print(f"  {r}  " + " ".join(f"{rate:3.0%}".rjust(4) for rate in opened[regime == r].mean(0)[:16].tolist()))
