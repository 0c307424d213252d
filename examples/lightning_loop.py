"""A gated model in Lightning: `training_step` stays as it is, a callback holds the budget. Needs `lightning`."""

import logging
import tempfile
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dynamicgate as dg
from dynamicgate.integrations import GateCallback

warnings.filterwarnings("ignore", ".*does not have many workers.*")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(LightningModule):
    """An ordinary module of Lightning."""

    def __init__(self, net: nn.Module) -> None:
        """Around any network."""
        super().__init__()
        self.net = net

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of a batch."""
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


torch.manual_seed(0)
x = torch.randn(6000, 32)
y = (x[:, :4] @ torch.randn(4, 4)).argmax(1)  # four of the inputs matter
train, test = (x[:5000], y[:5000]), (x[5000:], y[5000:])

net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 4))
dg.gate_(net, dg.GateConfig(block=8))
callback = GateCallback(dg.Budget(target=0.4))
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        max_epochs=8,
        callbacks=[callback],
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(net), DataLoader(TensorDataset(*train), batch_size=64, shuffle=True))

print(dg.measure(net, test))  # the budget has been met: the callback calibrates when training ends
