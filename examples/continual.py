"""One task after the other: what is kept, what is forgotten, and the kept contexts compiled. Needs scikit-learn."""

import torch

import dynamicgate as dg
from dynamicgate.continual import Contexts, Keeper, Readout, follow, grouped, permuted, read_out, readout_model
from dynamicgate.lab.datasets.loading import load_dataset

torch.manual_seed(0)
digits = load_dataset("digits").flat()  # 8 x 8 images that ship with scikit-learn

# Five orders of the pixels. Plain training forgets the first ones; contexts have blocks of their own, which are kept.
stream = permuted(digits, tasks=5)
asked = {"epochs": 10, "batch": 32, "lr": 3e-3, "show": False}
plain = dg.nn.GatedMLP((64, 160, 10))
print("plain   ", follow(plain, stream, **asked))

model = dg.nn.GatedMLP((64, 160, 10), dg.GateConfig(kind="context", block=32, contexts=5))
contexts = Contexts(model, Keeper(model))
print("contexts", follow(model, stream, contexts=contexts, **asked))

# No task is told in testing: the nearest prototype names the context of a row, and only its blocks run.
rows = torch.cat([task.test.values for task in stream])
labels = torch.cat([task.test.y for task in stream])
fast = dg.compile(model, rows, seconds=2)
print(f"\ncompiled: accuracy {dg.measure(fast, (rows, labels)).accuracy:.4f}\n{fast.plan}")

# Groups of rows instead: batches, donors or, here, three parts of the rows in the order in which they were written.
train, test = ([3 * n // len(part) for n in range(len(part))] for part in (digits.train, digits.test))
scribes = grouped(digits, train, test)
readout = readout_model(scribes.features, 500, scribes.classes)  # no row is kept, only sums
print("\nreadout ", read_out(readout, scribes, Readout(500), show=False))
