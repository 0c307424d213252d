# %% [markdown]
# # A table of numbers
# The breast cancer table that ships with scikit-learn: 569 rows, 30 columns, two classes. A gate decides for each row
# which of 64 hidden units run, and the budget holds the mean to 0.4 of the dense multiply-accumulates.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import nn

import dynamicgate as dg

table = load_breast_cancer()
x, y = torch.tensor(table.data, dtype=torch.float32), torch.tensor(table.target)
x, x_test, y, y_test = train_test_split(x, y, test_size=0.3, random_state=0, stratify=y)

# %% [markdown]
# `Normalize` is part of the model, so that it reads the columns as they are. The gate is a child of the last layer.

# %%
torch.manual_seed(0)
model = nn.Sequential(dg.nn.Normalize(x.mean(0), x.std(0)), nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 2))
dg.gate_(model, dg.GateConfig(net="low-rank", rank=2))
dg.fit(model, (x, y), budget=dg.Budget(target=0.4), epochs=40, batch=32, show=False)
print(dg.measure(model, (x_test, y_test)))

# %% [markdown]
# How much each row costs. `watch` sees the outputs and the MACs of every row of a batch.

# %%
costs = []
dense = dg.measure(model, x_test, watch=lambda scores, macs: costs.append(macs)).macs["dense"]
cost = (torch.cat(costs) / dense).numpy()
figure, axis = plt.subplots(figsize=(6, 2.6))
for label, name in enumerate(table.target_names):
    axis.hist(cost[y_test.numpy() == label], bins=24, alpha=0.7, label=name)
axis.set(xlabel="executed MACs of a row, relative to dense", ylabel="rows")
axis.legend(frameon=False)
