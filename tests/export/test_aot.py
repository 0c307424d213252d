"""AOTInductor packages and torch.export programs run where this package is not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dynamicgate as dg
from dynamicgate.export import to_aot, to_program
from tests.export.test_onnx import staged
from tests.inference.models import compile_quickly, gated_mlp

ALONE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "dynamicgate":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
import torch
try:
    import dynamicgate
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("dynamicgate was there")
x = torch.load({x!r})
model = {load}
torch.save([torch.cat([model(part) for part in x.split(rows)]) for rows in {rows}], {y!r})
"""


def run_alone(load: str, x: torch.Tensor, rows: tuple[int, ...], folder: Path) -> list[torch.Tensor]:
    """The outputs, with so many rows at a time, in a process in which `dynamicgate` cannot be imported."""
    torch.save(x, folder / "x.pt")
    code = ALONE.format(x=str(folder / "x.pt"), y=str(folder / "y.pt"), load=load, rows=rows)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, env={"PATH": "/usr/bin:/bin"})
    return torch.load(folder / "y.pt")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_a_package_runs_where_this_package_cannot_be_imported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = staged("margin"), torch.randn(24, 20)
    exported = to_aot(model, x, tmp_path / "m.pt2")
    assert exported.verification is not None
    assert exported.verification.error < 1e-5
    assert "rows that stop leave out later stages" in str(exported)
    load = f"torch._inductor.aoti_load_package({str(tmp_path / 'm.pt2')!r})"
    with torch.no_grad():
        for y in run_alone(load, x, (1, 7), tmp_path):
            torch.testing.assert_close(y, model(x), rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("kind", ["gated", "staged", "plan"])
def test_programs_have_torch_operators_only_and_load_without_this_package(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(24, 20)
    model = staged("head") if kind == "staged" else gated_mlp(dg.GateConfig(block=8))
    program = to_program(compile_quickly(model, x) if kind == "plan" else model, x)
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert [name for name in calls if "dynamicgate" in name] == []
    with torch.no_grad():
        for rows in (1, 7):  # any number of rows
            y = torch.cat([program.module()(part) for part in x.split(rows)])
            torch.testing.assert_close(y, model(x), rtol=0.0, atol=1e-5)
    if kind == "plan":
        torch.export.save(program, tmp_path / "p.pt2")
        load = f"torch.export.load({str(tmp_path / 'p.pt2')!r}).module()"
        (y,) = run_alone(load, x, (7,), tmp_path)
        torch.testing.assert_close(y, model(x).detach(), rtol=0.0, atol=1e-5)


def test_the_name_of_a_package_ends_in_pt2(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"an AOTInductor package is a \.pt2 file, received 'm\.so'"):
        to_aot(gated_mlp(dg.GateConfig(block=8)), torch.randn(4, 20), tmp_path / "m.so")
