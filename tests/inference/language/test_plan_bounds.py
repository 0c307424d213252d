"""What a plan says about the machine: how near it comes to what memory and arithmetic give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import dynamicgate as dg
from dynamicgate.accounting import measure
from dynamicgate.inference.decoder_parts import parts_of
from dynamicgate.inference.language import machine
from dynamicgate.inference.language.calls import Inputs
from dynamicgate.inference.language.pipeline import _open_rates
from dynamicgate.inference.language.plan import BY_LAYER, WHOLE, LanguagePlan, Machine, ModelRegime
from dynamicgate.inference.language.work import work_of
from dynamicgate.ops import native
from tests.inference.language.models import gpt, quickly


def plan(*, megabytes: float = 0.0, macs: float = 0.0, read: float = 10.0, multiply: float = 100.0) -> LanguagePlan:
    """A plan whose only call takes a millisecond."""
    regime = ModelRegime("a call", 1, {WHOLE: 1000.0}, {}, megabytes, macs)
    return LanguagePlan(WHOLE, [regime], {}, machine=Machine(read, multiply))


@pytest.mark.parametrize(
    ("megabytes", "macs", "said"),
    [
        (8.0, 1e6, "bound by reading memory"),
        (1.0, 40e6, "bound by arithmetic"),
        (8.0, 45e6, "bound by arithmetic"),
        (4.0, 1e6, "bound by neither alone, nearer to reading memory"),
        (1.0, 20e6, "bound by neither alone, nearer to arithmetic"),
        (20.0, 1e6, "its weights come from the processor's cache"),
    ],
)
def test_a_plan_says_what_bounds_it(megabytes: float, macs: float, said: str) -> None:
    text = str(plan(megabytes=megabytes, macs=macs))
    assert said in text
    assert text.count("bound") == 1
    assert f"{megabytes:.1f} GB/s: {megabytes / 10:.0%} of the 10.0 GB/s of this machine's memory" in text
    assert f"{2e-6 * macs:.1f} GFLOP/s: {2e-6 * macs / 100:.0%} of the 100.0 GFLOP/s" in text


def test_a_plan_without_a_machine_says_only_what_it_does() -> None:
    text = str(replace(plan(megabytes=8.0, macs=1e6), machine=None))
    assert "reads 8.0 MB of weights and cache, 8.0 GB/s" in text
    assert "% of the" not in text
    assert "bound" not in text
    assert "% of the 100.0" in str(plan(megabytes=8.0, macs=1e6, read=0.0)), "memory was not measured"


def test_a_plan_that_is_not_native_says_nothing_of_the_machine() -> None:
    torch_plan = replace(plan(megabytes=8.0, macs=1e6), chosen=BY_LAYER, regimes=[])
    assert "GB/s" not in str(torch_plan)


def test_plans_of_earlier_versions_are_read() -> None:
    found = plan(megabytes=8.0, macs=1e6).to_dict()
    assert LanguagePlan.from_dict(found) == plan(megabytes=8.0, macs=1e6)
    del found["machine"]
    for regime in found["regimes"]:
        del regime["macs"]
    older = LanguagePlan.from_dict(found)
    assert older.machine is None
    assert older.regimes[0].macs == 0.0
    assert "reads 8.0 MB" in str(older)


def test_the_work_of_a_decoder_is_what_the_counter_counts() -> None:
    model = gpt()
    ids = torch.randint(50, (2, 12))
    rates = _open_rates(model, Inputs((ids,)))
    work = work_of(parts_of(model), {gate: rates[name] for name, gate in dg.named_gates(model).items()})
    found = measure(model, ids).to_dict()["macs"]
    whole_square = 2 * 12 * 12 * 32 * 2  # which attention in torch executes, and the kernels half of
    assert 12 * work.token == pytest.approx(found["executed"] - whole_square)
    assert work.pair == 2 * 32 * 2
    assert work.macs(2, 0, 12) == pytest.approx(2 * (12 * work.token + 78 * work.pair))
    assert work.macs(2, 0, 12) + work.macs(2, 12, 1) == pytest.approx(work.macs(2, 0, 13))


@pytest.mark.skipif(bool(native.missing()), reason="no compiled kernels")
def test_a_compiled_model_knows_what_its_calls_execute(take: Callable[[str], None]) -> None:
    take(WHOLE)
    found = quickly(gpt(), torch.randint(50, (1, 12))).plan
    assert isinstance(found, LanguagePlan)
    prompt, token = found.regimes
    assert 6 * token.macs < prompt.macs < 12 * token.macs
    assert prompt.megabytes > 0.0
    assert found.machine == machine.reached()
    assert "GFLOP/s" in str(found)


def test_the_machine_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine.reached()
    assert found.read > 0.0
    assert found.multiply > 0.0
    monkeypatch.setattr(machine, "read_speed", lambda: pytest.fail("measured again"))
    assert machine.reached() is found


def test_what_is_read_is_larger_than_the_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index, size in enumerate(("32K", "1024K", "36608K")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    monkeypatch.setattr(machine, "CACHES", tmp_path)
    assert machine.last_level_cache() == 36608 << 10
    monkeypatch.setattr(machine, "CACHES", tmp_path / "none")
    assert machine.last_level_cache() == machine.UNKNOWN_CACHE
    assert machine.SMALLEST >= 4 * machine.UNKNOWN_CACHE


def test_without_memory_to_read_there_is_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(count: int) -> torch.Tensor:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(native, "in_large_pages", refuse)
    assert machine.read_speed() == 0.0
