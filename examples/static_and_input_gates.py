"""Two kinds of gate on one network: static gates that select input features, dynamic gates on the hidden units.

The data is synthetic, so that the right answer is known: 8 of 64 features determine the label, the other 56 are noise.
"""

import torch
from torch import Tensor

import dynamicgate as dg

USEFUL, FEATURES, CLASSES = 8, 64, 4


def noisy_features(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows whose first `USEFUL` features determine the class, through a fixed random network."""
    fixed = torch.Generator().manual_seed(0)
    first, second = torch.randn(USEFUL, 16, generator=fixed), torch.randn(16, CLASSES, generator=fixed)
    x = torch.randn(rows, FEATURES, generator=torch.Generator().manual_seed(seed))
    return x, ((x[:, :USEFUL] @ first).tanh() @ second).argmax(1)


torch.manual_seed(0)
train, valid, test = (noisy_features(rows, seed) for seed, rows in enumerate((8_000, 2_000, 4_000), start=1))

model = dg.nn.GatedMLP((FEATURES, 64, CLASSES))  # dense so far
print("sites:", *dg.find_sites(model), sep="\n  ")
dg.gate_(model, dg.GateConfig(kind="static"), where=dg.where.inputs)  # one logit per feature, the same for every row
dg.gate_(model, dg.GateConfig(net="low-rank", rank=2), where=dg.where.hidden)  # decided from the selected features

budget = dg.Budget(target=0.15)
dg.fit(model, train, valid=valid, budget=budget, epochs=20, batch=256, lr=4e-3, show=False)
measured = dg.measure(model, test)
print(measured, "\n")

kept = torch.nonzero(dg.named_gates(model)["layers.0"](test[0][:1]).open[0]).flatten().tolist()
print(f"features kept by the static gate: {kept}")
print(f"useful ones among them: {sum(k < USEFUL for k in kept)} of {USEFUL}; noise: {sum(k >= USEFUL for k in kept)}")
for gate in measured.gates:
    print(f"gate {gate['name']!r} ({gate['kind']}): {gate['varying']:.0%} of its units vary with the input")
