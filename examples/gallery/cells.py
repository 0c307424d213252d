# %% [markdown]
# # Single cells
# 700 blood cells with 765 genes and ten cell types, which ship with scanpy. Which units run for which cell type?

# %%
import matplotlib.pyplot as plt
import numpy as np
import scanpy
import torch
from torch import nn

import dynamicgate as dg

cells = scanpy.datasets.pbmc68k_reduced()
names = list(cells.obs["bulk_labels"].cat.categories)
x = torch.tensor(np.asarray(cells.X), dtype=torch.float32)
y = torch.tensor(cells.obs["bulk_labels"].cat.codes.to_numpy()).long()
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
train, test = order[:500], order[500:]

# %% [markdown]
# Gates on blocks of four units, for 0.3 of the dense MACs. They read all genes through two numbers.

# %%
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(765, 128), nn.ReLU(), nn.Linear(128, 10))
dg.gate_(model, dg.GateConfig(block=4, net="low-rank", rank=2))
budget = dg.Budget(target=0.3)
dg.fit(model, (x[train], y[train]), budget=budget, epochs=25, batch=32, show=False)
print(dg.measure(model, (x[test], y[test])))

# %% [markdown]
# Blocks that are open for some cell types and closed for others; a static choice of units would have rows of one shade.

# %%
with dg.usage(model) as used, torch.no_grad():
    model.eval()(x)
open_by_type = torch.stack([used["2"].open[y == label].float().mean(0) for label in range(10)])
varying = open_by_type.var(0).argsort(descending=True)
figure, axis = plt.subplots(figsize=(6.4, 3))
axis.imshow(open_by_type[:, varying].numpy(), aspect="auto", cmap="viridis", vmin=0, vmax=1)
axis.set_yticks(range(10), names, fontsize=7)
axis.set(xlabel="block of four units, the most varying first")
