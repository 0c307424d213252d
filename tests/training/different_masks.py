"""Two processes that start from different masks: the first update must fail."""

import torch
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate import distributed

if __name__ == "__main__":
    torch.set_num_threads(1)
    distributed.start(torch.device("cpu"))
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((8, 16, 3))
    sparsifier = dg.sparsity.SET(model, 0.3, every=2, seed=distributed.rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        F.cross_entropy(model(torch.randn(5, 8)), torch.randint(3, (5,))).backward()
        sparsifier.step(optimizer, step / 4)
        optimizer.step()
