"""What a plan is compared with is the model itself: nothing that was done to it from outside may be forgotten."""

from __future__ import annotations

import copy
import types

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrizations

import dynamicgate as dg
from dynamicgate.inference import verify_model
from tests.fuzz.models import check
from tests.fuzz.running import failures
from tests.fuzz.threads import compiled_model, gated_model, wrong_calls


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5)).eval()


def assert_same(fast: nn.Module, model: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        assert torch.allclose(fast(x), model(x), atol=1e-5)


def test_random_models_match_float64_of_the_untouched_model() -> None:
    assert failures(check, range(20)) == []


def test_a_bound_forward_is_honoured() -> None:
    model, x = small(), torch.randn(50, 16)
    model[0].forward = types.MethodType(lambda self, x: nn.functional.linear(x, self.weight) * 3.0, model[0])
    fast = dg.compile(model, x, seconds=0.1)
    assert_same(fast, model, x)
    assert "forward of its own" in "".join(fast.plan.notes)


def test_a_forward_that_holds_tensors_of_its_own_is_refused() -> None:
    model, x = small(), torch.randn(50, 16)
    plain, low, high = model[0].forward, torch.randn(4, 16), torch.randn(32, 4)
    model[0].forward = lambda x: plain(x) + x @ low.T @ high.T
    with pytest.raises(ValueError, match="forward of '0' was replaced"):
        dg.compile(model, x, seconds=0.1)


def test_a_plan_without_the_replaced_forward_is_found_out() -> None:
    model, x = small(), torch.randn(50, 16)
    fast = dg.compile(model, x, seconds=0.1)
    model[0].forward = types.MethodType(lambda self, x: nn.functional.linear(x, self.weight) * 3.0, model[0])
    with pytest.raises(ValueError, match="does not compute what the model computes"):
        verify_model(fast, model, x)


def test_hooks_and_parametrizations_are_honoured() -> None:
    x = torch.randn(50, 16)
    for change in (
        lambda m: m[2].register_forward_hook(lambda _module, _args, out: out + 1.0),
        lambda m: m[0].register_forward_pre_hook(lambda _module, args: (args[0] * 0.5,)),
        lambda m: parametrizations.weight_norm(m[2]),
    ):
        model = small()
        change(model)
        assert_same(dg.compile(model, x, seconds=0.1), model, x)


@pytest.mark.parametrize("rows", [1, 17, 300])
def test_nan_reaches_the_outputs_of_every_form(rows: int) -> None:
    model = gated_model()
    x = torch.randn(300, 32)
    plans = [dg.compile(model, x, seconds=0.1, same_bits=same) for same in (False, True)]
    x[::7, 3] = torch.nan
    for fast in plans:
        y = fast(x[:rows])
        assert torch.equal(y.isnan().all(1), x[:rows].isnan().any(1))


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # inside torch, where jvp begins
def test_derivatives_raise() -> None:
    fast, x = compiled_model(), torch.randn(4, 32)
    y = fast(x.clone().requires_grad_())
    with pytest.raises(RuntimeError, match="no derivatives"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="no derivatives"):
        torch.func.grad(lambda q: fast(q).sum())(x)
    with pytest.raises(RuntimeError, match="no derivatives"):
        torch.func.jvp(fast, (x,), (torch.ones_like(x),))
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="no derivatives"):
        fast(forward_ad.make_dual(x, torch.ones_like(x)))
    with torch.no_grad():
        assert torch.equal(fast(x.clone().requires_grad_()), fast(x))


def test_assigned_weights_are_used_and_sparse_inputs_refused() -> None:
    fast, x = compiled_model(), torch.randn(40, 32)
    changed = copy.deepcopy(fast)
    doubled = {k: v.clone() * 2 if v.is_floating_point() else v for k, v in fast.state_dict().items()}
    changed.load_state_dict(doubled, assign=True)
    assert not torch.equal(changed(x), fast(x))
    with pytest.raises(ValueError, match="sparse"):
        fast(x.to_sparse())


def test_eight_threads_get_the_answers_of_one_plan() -> None:
    assert wrong_calls(compiled_model(), 60) == []
