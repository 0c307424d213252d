# %% [markdown]
# # Your own loop
# Nothing of ours needs our loop. Four lines are added to a plain one: for the budget before and after the forward pass,
# for the record of decisions around it, and the calibration at the end.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F

import dynamicgate as dg

torch.manual_seed(0)
x = torch.randn(4000, 32)
y = (x[:, :8].abs() + x[:, 8:16]).argmax(1)
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 8))
dg.gate_(model, dg.GateConfig(net="low-rank", rank=2))
sparsifier, budget = dg.RigL(model, density=0.5, every=25), dg.Budget(target=0.3)
optimizer, total, seen = torch.optim.AdamW(model.parameters(), lr=3e-3), 500, []
for step in range(total):
    rows, progress = torch.randint(3000, (128,)), step / total
    budget.apply_(model, progress)  # 1: before the forward pass
    with dg.usage(model) as used:  # 2: record what the gates decide
        loss = F.cross_entropy(model(x[rows]), y[rows])
    term = budget.step(used, progress)  # 3: the penalty
    sparsifier.watch(used, term)
    (loss + term).backward()
    sparsifier.step(optimizer, progress)  # prunes and regrows connections now and then
    optimizer.step()
    optimizer.zero_grad()
    seen.append((float(loss.detach()), budget.relative, budget.reference))
budget.calibrate_(model, x[3000:])  # 4: shift the gates onto the budget
print(dg.measure(model, (x[3000:], y[3000:])))

# %% [markdown]
# The closed loop at work: what was executed at each step, and where it should have been.

# %%
figure, axes = plt.subplots(1, 2, figsize=(7, 2.6), layout="constrained")
axes[0].plot([cost for _, cost, _ in seen], label="executed")
axes[0].plot([aim for _, _, aim in seen], "--", label="where it should be")
axes[0].set(xlabel="step", ylabel="MACs, relative to dense")
axes[0].legend(frameon=False)
axes[1].plot([loss for loss, _, _ in seen])
axes[1].set(xlabel="step", ylabel="loss")
