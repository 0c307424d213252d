"""What must hold for every family: files, half precision, checkpointing, padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

import dynamicgate as dg
import dynamicgate.hf
from tests.hf.gated import run, spread_
from tests.hf.models import FAMILIES, NAMES, inputs, tiny

PADDED = [name for name in NAMES if FAMILIES[name].input == "tokens"]
CHECKPOINTED = {"use_reentrant": False}


def gated(name: str, where: str = "mlp") -> Any:
    return spread_(dg.gate_(tiny(name), dg.GateConfig(block=8), where=where))


@pytest.mark.parametrize("name", NAMES)
def test_save_pretrained_and_from_pretrained_keep_the_gates(name: str, tmp_path: Path) -> None:
    model = gated(name)
    model.save_pretrained(tmp_path)
    loaded = getattr(hf, FAMILIES[name].model).from_pretrained(tmp_path)
    assert dg.named_gates(loaded).keys() == dg.named_gates(model).keys()
    assert torch.equal(run(loaded, inputs(name)), run(model, inputs(name)))
    half: Any = dynamicgate.hf.load(tmp_path, dtype=torch.bfloat16)
    gate = next(iter(dg.named_gates(half).values()))
    assert (gate.tau.dtype, gate.theta.dtype) == (torch.float32, torch.float32)
    assert next(half.parameters()).dtype is torch.bfloat16


@pytest.mark.parametrize("name", NAMES)
def test_gradient_checkpointing_records_once_and_changes_no_gradient(name: str) -> None:
    found = []
    for checkpointed in (False, True):
        model = gated(name).train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        if checkpointed:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=CHECKPOINTED)
        with dg.usage(model) as used:
            out: Any = model(**inputs(name))
            loss = out.logits.square().mean() + sum(used.mean_p().values())
            loss.backward()
        rows = {site: decision.open.shape for site, decision in used.items()}
        gradients = {key: value.grad for key, value in model.named_parameters() if value.grad is not None}
        found.append((rows, gradients))
    (rows, gradients), (again, repeated) = found
    assert rows == again
    assert gradients.keys() == repeated.keys()
    for key, value in gradients.items():
        torch.testing.assert_close(repeated[key], value, msg=key)


@pytest.mark.parametrize("name", PADDED)
def test_padding_changes_nothing_that_is_counted(name: str) -> None:
    model, plain = gated(name).eval(), inputs(name)
    more = torch.zeros(len(plain["input_ids"]), 3, dtype=torch.long)  # 0 is the token for padding
    padded = {key: torch.cat([value, more], 1) for key, value in plain.items()}
    seen = []
    for batch in (plain, padded):
        with dg.usage(model) as used, torch.no_grad():
            model(**batch)
        seen.append({site: decision.open.flatten(0, -2) for site, decision in used.items()})
    for site, rows in seen[0].items():
        assert rows.shape == seen[1][site].shape, "padding is no row"
        assert torch.equal(rows, seen[1][site]), site
