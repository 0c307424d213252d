# %% [markdown]
# # A Transformer of your own
# A small causal Transformer that counts upwards by a hidden step. Gates go onto the feed-forward layers; which blocks
# run is decided for each token.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F

import dynamicgate as dg


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Counter(nn.Module):
    def __init__(self, tokens: int = 32, width: int = 32) -> None:
        super().__init__()
        self.read, self.place = nn.Embedding(tokens, width), nn.Embedding(16, width)
        self.blocks, self.write = nn.Sequential(Block(width), Block(width)), nn.Linear(width, tokens)

    def forward(self, ids):
        return self.write(self.blocks(self.read(ids) + self.place.weight[: ids.shape[1]]))


def counting(rows: int) -> torch.Tensor:
    return (torch.randint(32, (rows, 1)) + torch.randint(1, 6, (rows, 1)) * torch.arange(13)) % 32


# %% [markdown]
# The budget counts attention, the output layer and the gates as well: pass it a counter made with an example.

# %%
torch.manual_seed(0)
model = Counter()
sites = [
    dg.Site(consumer=f"blocks.{i}.down", producers=(f"blocks.{i}.up",), source=f"blocks.{i}.up", width=128)
    for i in range(2)
]
dg.gate_(model, dg.GateConfig(block=16, net="linear"), where=sites)
budget = dg.Budget(target=0.7, counter=dg.count_macs(model, counting(2)[:, :-1]))
optimizer, total, seen = torch.optim.AdamW(model.parameters(), lr=3e-3), 300, []
for step in range(total):
    ids = counting(32)
    budget.apply_(model, step / total)
    with dg.usage(model) as used:
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    (loss + budget.step(used, step / total)).backward()
    optimizer.step()
    optimizer.zero_grad()
    seen.append((float(loss.detach()), budget.relative, budget.reference))
budget.calibrate_(model, counting(256)[:, :-1])
print(f"executes {dg.measure(model, counting(256)[:, :-1]).relative:.3f} of the dense MACs")

# %% [markdown]
# The first token says nothing about the step, the second all of it: how many blocks does each position open?

# %%
with dg.usage(model) as used, torch.no_grad():
    model.eval()(counting(256)[:, :-1])
figure, axes = plt.subplots(1, 2, figsize=(7, 2.6), layout="constrained")
axes[0].plot([cost for _, cost, _ in seen], label="executed")
axes[0].plot([aim for _, _, aim in seen], "--", label="where it should be")
axes[0].set(xlabel="step", ylabel="MACs, relative to dense")
axes[0].legend(frameon=False)
for name, decision in used.items():
    axes[1].plot(decision.open.float().mean(-1).reshape(256, -1).mean(0), marker="o", label=name)
axes[1].set(xlabel="position in the sequence", ylabel="open blocks", ylim=(0, 1))
axes[1].legend(frameon=False)
