"""Gates in Lightning: the same weights as a loop of one's own, and the same after a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dynamicgate as dg
from tests.training.easy import blobs, differences

pytest.importorskip("lightning")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # Lightning asks torch in the old way
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]

from lightning.pytorch import LightningModule, Trainer  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

from dynamicgate.integrations import GateCallback  # noqa: E402

EPOCHS, BATCH, ROWS = 3, 20, 200
STEPS = EPOCHS * ROWS // BATCH
DATA = blobs(ROWS, spread=1.5)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3))
    return dg.gate_(net, dg.GateConfig(block=4))


class Classifier(LightningModule):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=5e-3)


def loader() -> DataLoader:
    return DataLoader(TensorDataset(*DATA), batch_size=BATCH)


def trainer(folder: Path, *callbacks: Any, epochs: int = EPOCHS, **rest: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    options = {"max_epochs": epochs, "default_root_dir": folder, "enable_checkpointing": False, **quiet, **rest}
    return Trainer(callbacks=list(callbacks), **options)


def own_loop(net: nn.Module, budget: dg.Budget, sparsifier: dg.RigL | None, micro_batches: int) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    batches, total = list(loader()) * EPOCHS, STEPS // micro_batches
    net.train()
    for step in range(total):
        progress = step / total
        budget.apply_(net, progress)
        for position in range(micro_batches):
            x, y = batches[step * micro_batches + position]
            with dg.usage(net) as used:
                loss = F.cross_entropy(net(x), y)
            term = budget.step(used, progress) if position == 0 else budget.penalty(used)
            if sparsifier is not None:
                sparsifier.watch(used, term / micro_batches)
            ((loss + term) / micro_batches).backward()
        if sparsifier is not None:
            sparsifier.step(optimizer, progress)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(("micro_batches", "sparse"), [(1, False), (1, True), (2, True)])
def test_training_gives_the_weights_of_a_loop_of_ones_own(tmp_path: Path, micro_batches: int, sparse: bool) -> None:
    nets = network(), network()
    sparsifiers = [dg.RigL(net, density=0.5, every=3, until=0.9) if sparse else None for net in nets]
    own_loop(nets[0], dg.Budget(target=0.6), sparsifiers[0], micro_batches)
    callback = GateCallback(dg.Budget(target=0.6), sparsifiers[1], calibrate=0)
    trainer(tmp_path, callback, accumulate_grad_batches=micro_batches).fit(Classifier(nets[1]), loader())
    for name, value in nets[0].state_dict().items():
        assert torch.allclose(nets[1].state_dict()[name], value, rtol=0, atol=1e-6), name
    assert not torch.equal(network()[0].weight, nets[1][0].weight)
    assert callback.metrics()["gate_penalty"] != 0.0
    assert list(tmp_path.iterdir()) == []


def test_the_budget_is_met_after_training_and_the_model_is_an_ordinary_one(tmp_path: Path) -> None:
    net = network()
    trainer(tmp_path, GateCallback(dg.Budget(target=0.6))).fit(Classifier(net), loader())
    assert dg.measure(net, DATA).macs["relative"] == pytest.approx(0.6, abs=0.02)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_run_is_continued_from_a_checkpoint_to_the_same_weights(tmp_path: Path, sparse: bool) -> None:
    def start(net: nn.Module) -> GateCallback:
        sparsifier = dg.RigL(net, density=0.5, every=3, until=0.9) if sparse else None
        return GateCallback(dg.Budget(target=0.6), sparsifier, calibrate=0)

    whole, continued = network(), network()
    for net, path in ((whole, None), (continued, str(tmp_path / "epoch=1.ckpt"))):
        keep = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
        run = trainer(tmp_path, start(net), keep, enable_checkpointing=True)
        run.fit(Classifier(net), loader(), ckpt_path=path, weights_only=False)
    assert differences(whole.state_dict(), continued.state_dict()) == []


class Called(Classifier):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def test_a_budget_that_followed_a_module_calibrates_the_network_inside() -> None:
    """Its gates have other names there."""
    module, budget = Called(network()), dg.Budget(target=0.6)
    for step in range(3):
        budget.apply_(module, step / 3)
        with dg.usage(module) as used:
            module(DATA[0])
        budget.step(used, step / 3)
    assert list(used) == ["net.2", "net.4"]
    assert budget.calibrate_(module.net, DATA[0]) == pytest.approx(0.6, abs=0.02)


def test_mistakes_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs a budget or a sparsifier"):
        GateCallback()
    plain = Classifier(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)))
    with pytest.raises(ValueError, match="this module has none"):
        trainer(tmp_path, GateCallback(dg.Budget(target=0.5))).fit(plain, loader())
    manual = Classifier(network())
    manual.automatic_optimization = False
    with pytest.raises(ValueError, match="with manual optimization call budget"):
        trainer(tmp_path, GateCallback(dg.Budget(target=0.5))).fit(manual, loader())
    made = GateCallback(dg.Budget(target=0.5)).state_dict()
    with pytest.raises(ValueError, match="the checkpoint was made without a sparsifier: pass the same"):
        GateCallback(dg.Budget(target=0.5), dg.RigL(network(), density=0.5)).load_state_dict(made)
