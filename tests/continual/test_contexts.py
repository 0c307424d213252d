"""Context gates: which context a row is from, which blocks it opens, and what stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.continual.contexts import Contexts
from dynamicgate.gating.context import ContextNet
from dynamicgate.sparsity import Keeper, RigL

CENTRES = 12.0 * torch.eye(8)[:5]


def rows(context: int, count: int = 80, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(100 * seed + context)
    return CENTRES[context] + torch.randn(count, 8, generator=draw)


def body(sizes: tuple[int, ...] = (8, 32, 3), contexts: int = 4, block: int = 4) -> dg.nn.GatedMLP:
    torch.manual_seed(0)
    return dg.nn.GatedMLP(sizes, dg.GateConfig(kind="context", block=block, contexts=contexts))


def learn(contexts: Contexts, x: Tensor, steps: int = 15) -> None:
    model, keeper, sparsifier = contexts.model, contexts.keeper, contexts.sparsifier
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    for step in range(steps):
        optimizer.zero_grad()
        with dg.usage(model) as used:
            loss = F.cross_entropy(model(x), torch.arange(len(x)) % 3)
        if sparsifier is not None:
            sparsifier.watch(used)
        loss.backward()
        if sparsifier is not None:
            sparsifier.step(optimizer, step / steps)
        if keeper is not None:
            keeper.step(optimizer)
        optimizer.step()
        if keeper is not None:
            keeper.restore_()


def taught(sizes: tuple[int, ...] = (8, 32, 3), tasks: int = 3) -> tuple[Contexts, list[Tensor]]:
    model = body(sizes)
    keeper = Keeper(model)
    contexts = Contexts(model, keeper, RigL(model, 0.4, every=3, initial_density=1.0, keeper=keeper))
    answers: list[Tensor] = []
    for task in range(tasks):
        contexts.open_()
        learn(contexts, rows(task))
        contexts.close_(rows(task))
        answers.append(model.eval()(rows(task)).detach())
        model.train()
    return contexts, answers


@pytest.mark.parametrize("sizes", [(8, 32, 3), (8, 32, 16, 3)])
def test_answers_of_every_old_context_are_equal_to_the_bit(sizes: tuple[int, ...]) -> None:
    contexts, answers = taught(sizes)
    for task, before in enumerate(answers):
        assert torch.equal(contexts.model.eval()(rows(task)), before)
    assert contexts.known == [0, 1, 2]
    assert contexts.keeper is not None
    assert set(contexts.keeper.free.values()) == {0.25}


def test_rows_are_recognised_and_open_the_blocks_of_their_context_only() -> None:
    contexts, _ = taught()
    model = contexts.model.eval()
    for task in range(3):
        with torch.no_grad(), dg.usage(model) as used:
            model(rows(task, seed=1))
        opened = used["layers.1"].open
        expected = torch.arange(8) // 2 == task
        right = (opened.bool() == expected).all(1).float().mean()
        assert float(right) > 0.9
        assert float(opened.sum(1).mean()) == 2.0


def test_every_context_has_the_density_of_its_own_places() -> None:
    contexts, _ = taught()
    mask = contexts.model.layers[0].mask
    for task in range(3):
        assert float(mask[8 * task : 8 * task + 8].float().mean()) == pytest.approx(0.4, abs=0.02)
    assert not bool(mask[24:].any()), "what nobody uses has no connections"


def test_before_the_first_context_everything_is_open() -> None:
    model = body()
    plain = dg.nn.GatedMLP((8, 32, 3))
    plain.load_state_dict({name: t for name, t in model.state_dict().items() if ".gate." not in name})
    assert torch.equal(model(rows(0)), plain(rows(0)))


def test_the_counter_counts_a_product_for_each_known_prototype() -> None:
    model = body()
    counter = dg.count_macs(model, rows(0)[:2])
    assert counter.gate == 0
    contexts = Contexts(model)
    for task in range(2):
        contexts.open_()
        contexts.close_(rows(task))
        assert counter.gate == 8 * (task + 1)
    found = dg.measure(model.eval(), (rows(0), torch.arange(80) % 3))
    assert found.macs["executed"] == 8 * 8 + 8 * 3 + 2 * 8


def test_a_model_is_saved_loaded_and_compiled(tmp_path: Path) -> None:
    contexts, answers = taught()
    dg.save(contexts.model, tmp_path / "model.safetensors")
    again = dg.load(tmp_path / "model.safetensors")
    assert torch.equal(again(rows(1)), answers[1])
    goes_on = Contexts(again, Keeper(again))
    assert goes_on.known == [0, 1, 2]
    goes_on.open_()
    learn(goes_on, rows(3))
    goes_on.close_(rows(3))
    assert torch.equal(again.eval()(rows(1)), answers[1])
    fast = dg.compile(again, example=rows(2))
    torch.testing.assert_close(fast(rows(2)), answers[2])
    assert "the nearest of 4 prototypes" in str(fast.plan)


def test_with_nothing_known_a_change_is_noticed() -> None:
    model = body()
    keeper = Keeper(model)
    contexts = Contexts(model, keeper)
    noticed = [contexts.notice_(rows(task, 40, seed)) for task in (0, 1, 2, 0) for seed in range(5)]
    assert noticed == [0] * 5 + [1] * 5 + [2] * 5 + [0] * 5
    assert contexts.opened == 3
    contexts.close_()
    assert model.layers[1].gate.net.nearest(rows(1)).float().mean() == pytest.approx(1.0, abs=0.1)


def test_a_noticed_context_is_kept_when_the_next_one_begins() -> None:
    model = body()
    contexts = Contexts(model, Keeper(model))
    contexts.notice_(rows(0))
    learn(contexts, rows(0))
    with contexts.told(0):
        before = model(rows(0)).detach()
    contexts.notice_(rows(1))
    learn(contexts, rows(1))
    contexts.notice_(rows(0, seed=1))  # comes again: nothing is left to learn, and nothing moves
    learn(contexts, rows(0))
    with contexts.told(0):
        assert torch.equal(model(rows(0)), before)


def test_the_oldest_context_is_released_when_no_block_is_free() -> None:
    contexts, answers = taught(tasks=4)
    with pytest.raises(ValueError, match="release"):
        contexts.open_()
    contexts.release = True
    contexts.open_()
    learn(contexts, rows(4))
    contexts.close_(rows(4))
    assert contexts.opened == 5
    assert contexts.known == [1, 2, 3, 0]
    for task in (1, 2, 3):
        assert torch.equal(contexts.model.eval()(rows(task)), answers[task])
    assert not torch.equal(contexts.model(rows(0)), answers[0])


def test_reused_contexts_are_read_and_not_changed() -> None:
    model = body((8, 32, 16, 3))
    contexts = Contexts(model, Keeper(model), reuse=1)
    contexts.open_()
    learn(contexts, rows(0))
    contexts.close_(rows(0))
    before = model.eval()(rows(0)).detach()
    model.train()
    contexts.open_(rows(1))
    assert int(contexts.open_units(1)["layers.1"].sum()) == 16
    learn(contexts, rows(1))
    contexts.close_(rows(1))
    assert torch.equal(model.eval()(rows(0)), before)
    reads = model.layers[1].weight[4:8, :8]
    assert bool((reads != 0).any()), "own units read those of the other context"


def test_random_blocks_overlap_and_cannot_be_kept() -> None:
    model = body(contexts=10)
    contexts = Contexts(model, share=3, blocks="random")
    opened = []
    for task in range(5):
        number = contexts.open_()
        opened.append(contexts.open_units(number)["layers.1"])
        contexts.close_(rows(task))
    assert all(int(units.sum()) == 12 for units in opened)
    assert bool((torch.stack(opened).sum(0) > 1).any())
    with pytest.raises(ValueError, match="overlap"):
        Contexts(model, Keeper(model), blocks="random")


def test_prototypes_are_the_mean_of_all_rows_in_any_pieces() -> None:
    x = rows(0, 90)
    whole, pieces = ContextNet(8, 4, 2), ContextNet(8, 4, 2)
    whole.learn_(0, x)
    for part in x.split([10, 30, 50]):
        pieces.learn_(0, part)
    torch.testing.assert_close(pieces.prototypes[0], x.mean(0))
    torch.testing.assert_close(pieces.spread[0], (x - x.mean(0)).square().sum(1).mean())
    torch.testing.assert_close(whole.spread, pieces.spread)


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="means nothing with kind='context'"):
        dg.GateConfig(kind="context", tau=2.0)
    with pytest.raises(ValueError, match="contexts is for"):
        dg.GateConfig(contexts=3)
    with pytest.raises(ValueError, match="kind 'context'"):
        Contexts(dg.nn.GatedMLP((8, 32, 3), dg.GateConfig()))
    model = body()
    with pytest.raises(ValueError, match="no budget"):
        dg.calibrate_(model, rows(0), macs=0.3)


def test_one_row_opens_no_context() -> None:
    model = body()
    contexts = Contexts(model)
    with pytest.raises(ValueError, match="use a larger batch"):
        contexts.notice_(rows(0)[:1])
    first = contexts.notice_(rows(0))
    assert [contexts.notice_(row[None]) for row in rows(1)[:5]] == [first] * 5
    assert contexts.notice_(rows(1)) != first
    assert contexts.opened == 2
