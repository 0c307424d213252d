"""Which candidates are kept for which batch sizes, from invented and from measured times."""

from __future__ import annotations

import torch

import dynamicgate as dg
from dynamicgate.inference.cpu.candidates import DENSE
from dynamicgate.inference.cpu.choose import select
from tests.inference.models import compile_quickly, gated_mlp

DENSE_NAME = DENSE.name


def test_more_than_one_copy_of_the_weights_is_kept_only_where_it_pays() -> None:
    sizes = {DENSE_NAME: 100, "panels": 110}
    hardly = [{DENSE_NAME: 10.0, "panels": 2.0}, {DENSE_NAME: 10.0, "panels": 10.1}]
    assert select(hardly, sizes, None) == (["panels"], [0, 0])
    clearly = [{DENSE_NAME: 10.0, "panels": 2.0}, {DENSE_NAME: 10.0, "panels": 20.0}]
    assert select(clearly, sizes, None) == ([DENSE_NAME, "panels"], [1, 0])
    assert select(clearly, sizes, 150.0) == (["panels"], [0, 0])
    assert select(clearly, sizes, 1.0) == ([DENSE_NAME], [0, 0])


def test_a_margin_within_the_noise_goes_to_dense_torch() -> None:
    sizes = {DENSE_NAME: 100, "panels": 110}
    assert select([{DENSE_NAME: 10.0, "panels": 9.8}], sizes, None) == ([DENSE_NAME], [0])
    assert select([{DENSE_NAME: 10.0, "panels": 9.6}], sizes, None) == (["panels"], [0])


def test_the_memory_that_is_held_can_be_limited() -> None:
    model, x = gated_mlp(dg.GateConfig(block=16), (64, 256, 10)), torch.randn(64, 64)
    assert compile_quickly(model, x, memory=1.1).plan.memory < 1.1
