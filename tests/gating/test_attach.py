"""Gates on and off in place, and what ordinary tools make of a gated model."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate import GateConfig, Site
from tests import forked


def base(*, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 3))


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


# --- on and off


def test_gating_keeps_base_parameters_names_values_and_identity() -> None:
    model = base()
    before = dict(model.named_parameters())
    assert dg.gate_(model, GateConfig()) is model
    after = dict(model.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    assert set(model.state_dict()) - set(before) == {
        f"{site}.gate.{key}" for site in ("2", "4") for key in ("tau", "theta", "net.weight", "net.bias")
    }


def test_a_base_checkpoint_loads_and_only_gate_keys_are_missing() -> None:
    checkpoint = base(seed=1).state_dict()
    model = dg.gate_(base(seed=2), GateConfig(net="low-rank"))
    missing, unexpected = model.load_state_dict(checkpoint, strict=False)
    assert unexpected == []
    assert missing
    assert all(".gate." in key for key in missing)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in checkpoint.items())


@pytest.mark.parametrize("config", [GateConfig(block=5), GateConfig(kind="static"), GateConfig(reads="same")])
def test_ungating_gives_back_the_same_model_bit_for_bit(config: GateConfig) -> None:
    model = base()
    x = torch.randn(7, 5)
    before, keys = model(x), list(model.state_dict())
    dg.gate_(model, config, where=dg.where.everywhere)
    assert not torch.equal(dg.gate_(base(), GateConfig(open=0.3))(x), before)
    assert dg.ungate_(model) is model
    assert torch.equal(model(x), before)
    assert list(model.state_dict()) == keys
    assert all(not m._forward_pre_hooks for m in model.modules())
    dg.gate_(model, config)  # and it can be gated again


def test_some_gates_can_be_taken_off_and_the_others_stay() -> None:
    model = dg.gate_(base(), GateConfig())
    dg.ungate_(model, where="2")
    assert list(dg.named_gates(model)) == ["4"]
    model(torch.randn(2, 5))
    with pytest.raises(ValueError, match="matches none of the sites"):
        dg.ungate_(model, where="2")


def test_ungating_a_model_without_gates_does_nothing() -> None:
    model = base()
    assert dg.named_gates(dg.ungate_(model)) == {}


def test_a_gate_takes_over_the_mode_of_its_layer_and_follows_it() -> None:
    model = dg.gate_(base().eval(), GateConfig())
    assert not any(gate.training for gate in dg.named_gates(model).values())
    model.train()
    assert all(gate.training for gate in dg.named_gates(model).values())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_in_another_precision_is_gated_in_that_precision_with_float32_thresholds(dtype: torch.dtype) -> None:
    model = dg.gate_(base().to(dtype), GateConfig(theta=0.3))
    assert model(torch.randn(2, 5, dtype=dtype)).dtype == dtype
    gate = dg.named_gates(model)["2"]
    assert gate.net.weight.dtype == dtype
    assert gate.theta.dtype == torch.float32


# --- where


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (dg.where.hidden, ["2", "4"]),
        (dg.where.inputs, ["0"]),
        (dg.where.everywhere, ["0", "2", "4"]),
        (lambda site: site.width == 9, ["4"]),
        ("2", ["2"]),
        ("[24]", ["2", "4"]),
        (["4"], ["4"]),
        (("2", "0"), ["0", "2"]),
        ([Site("4", ("2",), "2", 9)], ["4"]),
        (["2", Site("4", ("2",), "2", 9)], ["2", "4"]),
    ],
)
def test_where_is_a_predicate_a_name_a_glob_or_a_list(where, expected: list[str]) -> None:
    assert list(dg.named_gates(dg.gate_(base(), GateConfig(), where=where))) == expected


@pytest.mark.parametrize("where", ["7", "x*", ["2", "7"], lambda site: False, []])
def test_where_that_matches_nothing_lists_the_candidates_and_changes_nothing(where) -> None:
    model = base()
    with pytest.raises(ValueError, match="Candidates:\n  '0': 5 units from the input, read by 0\n  '2': 12 units"):
        dg.gate_(model, GateConfig(), where=where)
    assert dg.named_gates(model) == {}


def test_a_model_without_sites_is_told_how_to_describe_one() -> None:
    model = nn.Sequential(nn.Conv1d(1, 1, 1), nn.ReLU())
    with pytest.raises(ValueError, match=r"where=\[Site\(consumer="):
        dg.gate_(model)


def test_gating_twice_is_refused_before_anything_changes() -> None:
    model = dg.gate_(base(), GateConfig(), where="4")
    with pytest.raises(ValueError, match="'4' already has a gate; take it off with ungate_ first"):
        dg.gate_(model, GateConfig())
    assert list(dg.named_gates(model)) == ["4"]


def test_an_explicit_site_must_fit_its_layers() -> None:
    with pytest.raises(ValueError, match="the site says 8 units, but '4' reads 9"):
        dg.gate_(base(), GateConfig(), where=[Site("4", ("2",), "2", 8)])
    with pytest.raises(ValueError, match=r"in front of nn.Linear layers"):
        dg.gate_(base(), GateConfig(), where=[Site("3", ("2",), "2", 9)])


# --- two gates in a chain


def chain_by_hand(model: nn.Sequential, x: Tensor) -> Tensor:
    """sec 3 written out: every gate reads the h before its layer, as gated."""

    def g(site: str, h: Tensor) -> Tensor:
        net = dg.named_gates(model)[site].net
        return (torch.sigmoid(h @ net.weight.T + net.bias) > 0.5).float()

    h0 = x * g("0", x)
    h1 = torch.relu(h0 @ model[0].weight.T + model[0].bias) * g("2", h0)
    h2 = torch.relu(h1 @ model[2].weight.T + model[2].bias) * g("4", h1)
    return h2 @ model[4].weight.T + model[4].bias


@pytest.mark.parametrize("order", [("0", "2", "4"), ("4", "2", "0"), ("2", "0", "4")])
def test_every_gate_in_a_chain_reads_the_gated_units_before_it_in_whatever_order_it_was_put_on(order) -> None:
    model = base()
    for site in order:
        dg.gate_(model, GateConfig(open=0.5), where=site)
    for site in sorted(order):  # the same gates in each case
        nn.init.normal_(dg.named_gates(model)[site].net.weight)
    x = torch.randn(40, 5)
    with dg.usage(model) as used:
        out = model(x)
    assert all(0.1 < rate < 0.9 for rate in used.mean_open().values())
    torch.testing.assert_close(out, chain_by_hand(model, x))


def test_a_gate_that_reads_its_own_layer_passes_gated_units_to_the_next_gate() -> None:
    model = base()
    dg.gate_(model, GateConfig(open=0.5), where="4")
    dg.gate_(model, GateConfig(open=0.5, reads="same"), where="2")
    x = torch.randn(40, 5)
    own, following = (dg.named_gates(model)[site].net for site in ("2", "4"))
    h1 = torch.relu(x @ model[0].weight.T + model[0].bias)
    h1 = h1 * (torch.sigmoid(h1 @ own.weight.T + own.bias) > 0.5).float()
    g2 = (torch.sigmoid(h1 @ following.weight.T + following.bias) > 0.5).float()
    h2 = torch.relu(h1 @ model[2].weight.T + model[2].bias) * g2
    torch.testing.assert_close(model(x), h2 @ model[4].weight.T + model[4].bias)


# --- ordinary tools


def test_a_deep_copy_and_its_original_do_not_share_gates() -> None:
    model = dg.gate_(base(), GateConfig())
    x = torch.randn(6, 5)
    twin = copy.deepcopy(model)
    before = model(x)
    assert torch.equal(twin(x), before)
    with torch.no_grad():
        dg.named_gates(twin)["4"].net.bias.fill_(-50.0)  # closes the copy only
    assert torch.equal(twin(x), model[4].bias.expand(6, -1))
    assert torch.equal(model(x), before)
    with torch.no_grad():
        dg.named_gates(model)["2"].net.bias.fill_(-50.0)
        dg.named_gates(twin)["4"].net.bias.fill_(50.0)
    h1_closed = model[4].bias + F.linear(
        torch.relu(model[2].bias) * (torch.sigmoid(dg.named_gates(model)["4"].net.bias) > 0.5), model[4].weight
    )
    torch.testing.assert_close(model(x), h1_closed.expand(6, -1))
    assert not torch.equal(twin(x), model(x))
    with dg.usage(model) as used:
        twin(x)
    with pytest.raises(ValueError, match="no forward pass reached the gate"):
        used["2"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # inductor's own
def test_a_compiled_model_is_the_eager_one_with_its_gradients() -> None:
    model = dg.gate_(base(), GateConfig(block=4, open=0.6))
    x = torch.randn(16, 5)
    model(x).square().sum().backward()
    eager = gradients(model)
    expected = model(x)
    model.zero_grad()
    compiled = torch.compile(model, fullgraph=True)
    out = compiled(x)
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, eager[name], rtol=1e-4, atol=1e-5)


def test_usage_works_inside_a_compiled_model_and_new_thresholds_do_not_recompile_it() -> None:
    model = dg.gate_(base(), GateConfig(block=4, open=0.6))
    x = torch.randn(16, 5)
    with dg.usage(model) as eager:
        expected = model(x)
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for _ in range(3):
        with dg.usage(model) as used:
            out = compiled(x)
        torch.testing.assert_close(out, expected)
        for site in eager:
            torch.testing.assert_close(used[site].p, eager[site].p)
            assert torch.equal(used[site].open, eager[site].open)
    used.mean_p()["2"].backward()
    assert dg.named_gates(model)["2"].net.weight.grad.abs().sum() > 0
    frames = counter.frame_count
    for theta in (0.2, 0.7, 0.9):
        for gate in dg.named_gates(model).values():
            gate.theta.fill_(theta)
        with dg.usage(model) as used:
            out = compiled(x)
        torch.testing.assert_close(out, model(x))
    assert counter.frame_count == frames


def test_an_exported_model_answers_like_the_eager_one_for_other_batch_sizes() -> None:
    model = dg.gate_(base(), GateConfig(block=5, open=0.6)).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (torch.randn(4, 5),), dynamic_shapes=({0: batch},))
    for rows in (1, 7, 33):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(program.module()(x), model(x))


def test_under_autocast_the_layers_are_bfloat16_and_the_decisions_float32() -> None:
    model = dg.gate_(base(), GateConfig(theta=0.51))
    with torch.autocast("cpu", dtype=torch.bfloat16), dg.usage(model) as used:
        out = model(torch.randn(6, 5))
    assert out.dtype == torch.bfloat16
    for site in used:
        assert {part.dtype for part in used[site]} == {torch.float32}
    out.float().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


# --- two processes


def _train_step(
    model: nn.Module, wrapped: nn.Module, x: Tensor, y: Tensor, budget: dg.budget.GateBudget
) -> dict[str, Tensor]:
    processes = dist.get_world_size() if dist.is_initialized() else 1
    budget.apply_(wrapped, 0.5)
    with dg.usage(wrapped) as used:
        loss = F.cross_entropy(wrapped(x), y, reduction="sum") * processes / 12
    (loss + budget.step(used, 0.5)).backward()
    return gradients(model)


def _ddp_inputs() -> tuple[nn.Module, Tensor, Tensor]:
    model = dg.gate_(base(seed=5), GateConfig(block=3, open=0.6, net="low-rank", rank=1))
    for gate in dg.named_gates(model).values():
        for layer in gate.net:
            nn.init.normal_(layer.weight, std=2.0)  # rates that differ between the processes
    generator = torch.Generator().manual_seed(1)
    return model, torch.randn(12, 5, generator=generator), torch.randint(0, 3, (12,), generator=generator)


BUDGETS = {
    "closed loop": {"target": 0.75, "floor": 0.7, "anneal": 0.2, "integral": 0.1},
    "squared-hard": {"form": "squared-hard", "weight": 2.0, "target_rate": 0.4},
    "hinge": {"form": "hinge", "weight": 2.0, "target_rate": 0.4},
}


def _rank(rank: int, rendezvous: str, results: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    found = {}
    for name, settings in BUDGETS.items():
        model, x, y = _ddp_inputs()
        share = slice(0, 4) if rank == 0 else slice(4, 12)  # unequal, as a last batch is
        budget = (dg.Budget if "target" in settings else dg.budget.OpenLoopBudget)(**settings)
        found[name] = _train_step(model, nn.parallel.DistributedDataParallel(model), x[share], y[share], budget)
        found[name]["lambda"] = torch.tensor(budget.lambda_)
    torch.save(found, f"{results}.{rank}")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_compute_the_gradients_of_one_on_the_joined_batch_penalty_included(tmp_path: Path) -> None:
    results = str(tmp_path / "gradients")
    forked.call_in_two_processes(_rank, str(tmp_path / "meet"), results)
    ranks = [torch.load(f"{results}.{rank}") for rank in range(2)]
    for name, settings in BUDGETS.items():
        model, x, y = _ddp_inputs()
        budget = (dg.Budget if "target" in settings else dg.budget.OpenLoopBudget)(**settings)
        alone = _train_step(model, model, x, y, budget)
        assert budget.lambda_ != 0.0
        with dg.usage(model) as part:
            model(x[:4])
        with dg.usage(model) as rest:
            model(x[4:])
        assert all(abs(part.mean_open()[site] - rest.mean_open()[site]) > 0.01 for site in part)
        unpenalised, _, _ = _ddp_inputs()
        F.cross_entropy(unpenalised(x), y).backward()
        assert any(not torch.allclose(alone[key], grad) for key, grad in gradients(unpenalised).items())
        for rank in ranks:
            assert float(rank[name].pop("lambda")) == pytest.approx(budget.lambda_, rel=1e-5)
            assert rank[name].keys() == alone.keys()
            for key, gradient in alone.items():
                torch.testing.assert_close(rank[name][key], gradient, rtol=1e-5, atol=1e-6)
