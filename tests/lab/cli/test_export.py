"""`dynamicgate export`: the file, what is said about it, and the errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import dynamicgate as dg
from dynamicgate.lab.cli import main

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("data", [[], ["--data", "random"]])
def test_a_saved_model_becomes_an_onnx_file(
    data: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = dg.nn.GatedMLP((64, 32, 10), dg.GateConfig(block=16), normalize=dg.nn.Normalize(4.0, 6.0)).eval()
    dg.save(model, tmp_path / "model.safetensors", notes={"settings": {"data": "digits", "seed": 0}})
    out = tmp_path / "model.onnx"
    assert main(["export", str(tmp_path / "model.safetensors"), "--to", "onnx", "--out", str(out), *data]) == 0
    printed = capsys.readouterr().out
    assert f"wrote {out}" in printed
    assert "100% of the blocks open on the example" in printed
    assert "verified on" in printed
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    x = torch.rand(5, 64) * 16
    with torch.no_grad():
        (y,) = session.run(None, {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(y), model(x), rtol=1e-5, atol=1e-5)


def test_a_package_needs_its_ending(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dg.save(dg.nn.GatedMLP((12, 8, 3)), tmp_path / "model.safetensors")
    assert main(["export", str(tmp_path / "model.safetensors"), "--to", "pt2", "--out", str(tmp_path / "m.so")]) == 2
    assert "an AOTInductor package is a .pt2 file" in capsys.readouterr().err
