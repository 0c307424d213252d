# %% [markdown]
# # Deploy
# A trained model becomes a plan: every way to run its layers is timed on this machine, the fastest is kept for each
# batch size, and the outputs are compared with the model before you get it. Here the model is wide enough to pay.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import dynamicgate as dg

torch.manual_seed(0)
model = dg.nn.GatedMLP((512, 2048, 10), dg.GateConfig(block=64, net="low-rank", rank=4))
x = torch.randn(512, 512)
dg.calibrate_(model, x, macs=0.15)  # a trained model would be there already
fast = dg.compile(model, example=x, seconds=2)
for regime in fast.plan.chains[0]:
    print(f"batch {regime.batch}: " + "; ".join(f"{layer.name} {layer.choice}" for layer in regime.layers))

# %% [markdown]
# `print(fast.plan)` also shows the times on your machine: of eager dense, of compiled dense, which is the rival that
# counts, and of what was chosen. [Compile](../compile.md) has tables measured on quiet machines.
#
# One file holds the plan and its weights: no pickle, checksums, and nothing is timed again when it is loaded.

# %%
fast.save("fast.safetensors")
again = dg.inference.CompiledModel.load("fast.safetensors")
assert torch.equal(again(x), fast(x))
print(f"{Path('fast.safetensors').stat().st_size / 2**20:.1f} MiB")
Path("fast.safetensors").unlink()

# %% [markdown]
# What is left to do: executed MACs of each layer beside those of the dense one.

# %%
layers = fast.plan.chains[0][0].layers
places = range(len(layers))
figure, axis = plt.subplots(figsize=(6, 2.2))
axis.barh([at - 0.2 for at in places], [layer.shape[0] * layer.shape[1] for layer in layers], 0.4, label="dense")
axis.barh([at + 0.2 for at in places], [layer.macs for layer in layers], 0.4, label="executed, gates included")
axis.set_yticks(list(places), [layer.name for layer in layers])
axis.set(xlabel="multiply-accumulates of one row", xscale="log")
axis.legend(frameon=False)
