# %% [markdown]
# # Images: easy ones stop early
# Handwritten digits of 8 x 8 pixels. The hidden units are ordered in stages: an image whose answer is clear after the
# first stage stops there, and only the hard ones open the rest.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.lab.datasets import load_dataset

torch.manual_seed(0)
digits = load_dataset("digits")
model = nn.Sequential(dg.nn.Normalize(digits.mean, digits.std), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
dg.gate_(model, dg.GateConfig(kind="stages", stages=(0.15, 0.25, 0.6), decide="margin"))
dg.fit(model, digits.train, valid=digits.valid, budget=dg.Budget(target=0.3), epochs=25, batch=32, show=False)
found = dg.measure(model, digits.test)
print(found)

# %% [markdown]
# The cut can be moved after training: one model gives a curve. Below, the images that stopped first, and those that
# needed everything.

# %%
with dg.usage(model) as used, torch.no_grad():
    model(digits.test.x)
opened = used.stages.open.sum(-1).flatten()
figure, axes = plt.subplots(2, 8, figsize=(6.4, 1.9))
for row, stage in enumerate((int(opened.min()), int(opened.max()))):
    pictures = digits.test.x[opened == stage].reshape(-1, 8, 8)
    for axis in axes[row]:
        axis.axis("off")
    for axis, picture in zip(axes[row], pictures, strict=False):
        axis.imshow(picture.numpy(), cmap="gray_r")
    axes[row][0].set_title(f"opened {stage} of 3", fontsize=8, loc="left")

# %%
figure, axis = plt.subplots(figsize=(6, 2.6))
axis.plot([point["relative"] for point in found.curve], [point["accuracy"] for point in found.curve])
axis.plot([found.relative], [found.accuracy], "o")
axis.set(xlabel="executed MACs, relative to dense", ylabel="accuracy")
