"""Converted models: what every arm executes, by hand; what is removed and kept; training that resumes; the page."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
from experiments.conversion import experts, sentences, students, tables
from experiments.conversion import texts as texts_module
from experiments.conversion.measuring import measure_student
from experiments.conversion.models import ffn_macs, ffn_sites, sentence_encoder
from experiments.conversion.selections import Oracle, Threshold, kept_at
from experiments.conversion.static_width import importance, most_important, remove_units_
from experiments.conversion.students import Arm, Samples, Student, make_student
from experiments.conversion.texts import TESTED_ON, model_folder, own_texts
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM

import dynamicgate as dg
from dynamicgate.lab.runner import Experiment
from tests.experiments.conversion_runs import (
    CONTEXT,
    CPU,
    FEATURES,
    LAYERS,
    VOCABULARY,
    WIDTH,
    dense_model,
    ids,
    inputs_to_look_at,
)

FFN = 3 * FEATURES * WIDTH * LAYERS
ATTENTION = LAYERS * (2 * FEATURES * 32 + 2 * FEATURES * 16 + 2 * FEATURES * (CONTEXT + 1) / 2)
REST = ATTENTION + FEATURES * VOCABULARY  # and the head; a token sees half of the window on average


@pytest.fixture(scope="module")
def dense() -> nn.Module:
    return dense_model()


@pytest.fixture(scope="module")
def samples() -> Samples:
    return inputs_to_look_at()


def measured(student: Student, dense: nn.Module, seed: int = 5) -> dict[str, Any]:
    return measure_student(student, dense, [{"input_ids": ids(8, seed)}], text_bytes=8 * (CONTEXT - 1))


@pytest.mark.parametrize("fraction", tables.FRACTIONS)
@pytest.mark.parametrize("method", ["unit oracle", "block oracle", "ordered block oracle", "static width", "experts"])
def test_arms_execute_what_a_count_by_hand_says(
    method: Any, fraction: float, dense: nn.Module, samples: Samples
) -> None:
    student = make_student(Arm(method=method, ffn=fraction), dense, samples)
    router = LAYERS * FEATURES * 16 if method == "experts" else 0
    found = measured(student, dense)
    assert found["macs"]["dense"] == REST + FFN
    assert found["macs"]["executed"] == REST + fraction * FFN + router
    assert found["macs"]["ffn"] == pytest.approx(fraction + router / FFN)


def test_the_dense_arm_is_the_dense_model(dense: nn.Module, samples: Samples) -> None:
    student = make_student(Arm(method="dense"), dense, samples)
    assert student.model is not dense
    assert torch.equal(student.model(ids(2, 0)).logits, dense(ids(2, 0)).logits)
    assert measured(student, dense)["macs"]["relative"] == 1.0


@pytest.mark.parametrize("method", ["gate", "converted"])
def test_gates_pay_for_open_blocks_and_for_themselves(method: Any, dense: nn.Module, samples: Samples) -> None:
    student = make_student(Arm(method=method, ffn=0.5, block=8), dense, samples)
    found = measured(student, dense, seed=9)  # on what they were calibrated on
    nets = LAYERS * FEATURES * WIDTH // 8
    opened = sum(found["open"]) / LAYERS
    assert found["macs"]["executed"] == pytest.approx(REST + opened * FFN + nets)
    assert student.budget is not None
    assert student.budget.target == pytest.approx((REST + 0.5 * FFN) / (REST + FFN))
    expected = 0.98 if method == "gate" else 0.5  # training starts near the dense model
    assert found["macs"]["ffn"] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("fraction", tables.FRACTIONS)
@pytest.mark.parametrize(("method", "factors"), [("magnitude", True), ("magnitude", False), ("input thresholds", True)])
def test_thresholds_pay_for_the_columns_and_rows_of_what_is_above(
    method: Any, factors: bool, fraction: float, dense: nn.Module, samples: Samples
) -> None:
    student = make_student(Arm(method=method, ffn=fraction, factors=factors), dense, samples)
    found = measured(student, dense, seed=9)  # on what they were calibrated on
    of_factors = method == "magnitude" and factors
    assert any(gate.site.factors for gate in dg.named_gates(student.model).values()) == of_factors
    if not of_factors:
        assert found["macs"]["executed"] == pytest.approx(REST + sum(found["open"]) * FEATURES * WIDTH)
    assert found["macs"]["ffn"] == pytest.approx(fraction, abs=0.01)
    assert student.budget is not None
    assert student.budget.target == pytest.approx((REST + fraction * FFN) / (REST + FFN))


@pytest.mark.parametrize("block", [1, 32])
@pytest.mark.parametrize("fraction", tables.FRACTIONS)
def test_oracles_keep_exactly_the_asked_fraction_and_the_largest(block: int, fraction: float, dense: nn.Module) -> None:
    sites = ffn_sites(dense)
    oracle = Oracle(dense, sites, fraction, block)
    seen: dict[str, Tensor] = {}
    layer = dense.get_submodule(sites[0].consumer)
    before = layer.register_forward_pre_hook(lambda _m, args: seen.update(before=args[0]))
    with oracle.attached():
        after = layer.register_forward_pre_hook(lambda _m, args: seen.update(after=args[0]))
        dense(ids(4, 3))
    before.remove()
    after.remove()
    kept = seen["after"] != 0.0
    assert bool((seen["before"] != 0.0).all())
    assert bool((kept.sum(-1) == round(fraction * WIDTH)).all())
    assert torch.equal(seen["after"][kept], seen["before"][kept])
    size = (seen["before"].abs() * layer.weight.norm(dim=0)).unflatten(-1, (-1, block)).norm(dim=-1)  # type: ignore[union-attr,operator]
    chosen = kept.unflatten(-1, (-1, block)).all(-1)
    assert bool((size.masked_fill(~chosen, torch.inf).amin(-1) >= size.masked_fill(chosen, 0.0).amax(-1)).all())
    plain = copy.deepcopy(dense)(ids(4, 3)).logits
    assert torch.equal(dense(ids(4, 3)).logits, plain)  # nothing is left behind


def test_static_width_equals_the_model_with_those_units_removed(dense: nn.Module, samples: Samples) -> None:
    sites = ffn_sites(dense)
    kept = most_important(importance(dense, sites, samples.training), 0.5)
    narrow = copy.deepcopy(dense)
    remove_units_(narrow, sites, kept)
    config = copy.deepcopy(dense.config)
    config.intermediate_size = WIDTH // 2  # type: ignore[union-attr]
    state = dict(dense.state_dict())
    for site in sites:
        for name in site.producers:
            state[f"{name}.weight"] = state[f"{name}.weight"][kept[site.name]]
        state[f"{site.consumer}.weight"] = state[f"{site.consumer}.weight"][:, kept[site.name]]
    expected = LlamaForCausalLM(config).eval()  # type: ignore[arg-type]
    expected.load_state_dict(state)
    assert torch.equal(narrow(ids(4, 3)).logits, expected(ids(4, 3)).logits)
    assert narrow.config.intermediate_size == WIDTH // 2  # type: ignore[union-attr]


def test_units_are_ranked_by_what_they_add(dense: nn.Module, samples: Samples) -> None:
    model = copy.deepcopy(dense)
    sites = ffn_sites(model)
    reader = model.get_submodule(sites[1].consumer)
    reader.weight[:, 7] = 0.0  # type: ignore[index,operator]
    scores = importance(model, sites, samples.training)
    assert scores[sites[1].name][7] == 0.0
    assert 7 not in most_important(scores, 0.75)[sites[1].name]


def test_a_threshold_pays_for_the_gate_projection_and_what_is_above(dense: nn.Module, samples: Samples) -> None:
    model = copy.deepcopy(dense)
    sites = ffn_sites(model)
    selection = Threshold(model, sites, 0.5, samples.validation)
    assert selection.kept[sites[0].name] == pytest.approx(0.25)  # a third always, and a quarter of two thirds
    found = measured(Student(model, selection=selection), dense, seed=9)
    above, rows = selection._seen[sites[0].name]
    assert above / rows == pytest.approx(0.25, abs=1e-3)  # the first layer reads what it read in calibration
    both = [selection._seen[site.name][0] / selection._seen[site.name][1] for site in sites]
    assert found["macs"]["executed"] == pytest.approx(REST + FFN / 3 + FFN * 2 / 3 * sum(both) / LAYERS)
    with pytest.raises(ValueError, match="33% of the layer"):
        kept_at(model, sites[0], 0.25)


def test_experts_are_units_alike_and_all_of_them_are_the_dense_layer(dense: nn.Module) -> None:
    centres = 5.0 * torch.eye(4)
    rows = centres.repeat(8, 1) + 0.1 * torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    order = experts.cluster_order(rows, 4)
    assert all(len({int(unit) % 4 for unit in run}) == 1 for run in order.split(8))
    model = copy.deepcopy(dense)
    assert experts.to_experts_(model, ffn_sites(model), 16, 1.0) == 16
    torch.testing.assert_close(model(ids(2, 0)).logits, dense(ids(2, 0)).logits)
    site = ffn_sites(model)[0]
    router = dg.named_gates(model)[site.name].net
    means = model.get_submodule(site.source).weight.unflatten(0, (16, 8)).mean(1)  # type: ignore[operator,union-attr]
    torch.testing.assert_close(router.weight, means, check_device=False)  # type: ignore[arg-type]


def test_a_run_measures_every_text(tmp_path: Path) -> None:
    experiment = Experiment("conversion", tables.tables(), tmp_path, quick=True)
    table = experiment.table("smollm2-2m")
    (job,) = [job for job in experiment.jobs([table], device="cpu") if job.model == "experts 50 %"]
    assert table.load is not None
    data = table.load(job, None)
    run = table.train(job, data)
    assert set(run["quality"]["test"]) == set(TESTED_ON)
    assert set(run["quality"]["valid"]) == {"books", "python"}
    assert run["tokens"] == tables.QUICK_SMOLLM2["tokens"]
    assert run["macs"]["ffn"] == pytest.approx(0.5 + 16 / (3 * WIDTH))
    assert {"name", "train", "valid", "test", "features", "classes"} <= data.sizes().keys()


def test_sentences_are_marked_and_padded() -> None:
    found = sentences.Sentences(own_texts(("books",)), "valid")
    batch = found.batch([0, 1, 2])
    for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        words = row[mask.bool()].tolist()
        assert (words[0], words[-1]) == (1, 2)
        assert chr(words[-2]) in sentences.ENDS or len(words) == sentences.LONGEST + 2
        assert not any(chr(word) in sentences.ENDS for word in words[1:-2])
        assert len(words) >= sentences.SHORTEST + 2
        assert bool((row[~mask.bool()] == 0).all())


def test_sentences_of_a_batch_are_of_about_one_length_and_all_are_drawn_alike() -> None:
    lengths = np.random.default_rng(0).integers(4, 126, 50)
    places, counts, padding = torch.Generator().manual_seed(0), np.zeros(50), 0.0
    for _ in range(2000):
        rows = sentences.alike(lengths, 8, places)
        counts += np.bincount(rows, minlength=50)
        padding += 1.0 - lengths[rows].mean() / lengths[rows].max()
    assert padding / 2000 < 0.1, "nearly half, of lengths at random"
    expected = 2000 * 8 / 50
    assert np.abs(counts - expected).max() < 0.5 * expected


def test_a_sentence_encoder_is_measured_by_its_cosine(tmp_path: Path) -> None:
    dense = sentence_encoder(None)
    batches = sentences.Sentences(own_texts(("books",)), "test").fixed(8, 4)
    torch.testing.assert_close(sentences.cosine(dense, dense, batches, CPU), torch.ones(8))
    experiment = Experiment("conversion", tables.tables(), tmp_path, quick=True)
    table = experiment.table("minilm-2m")
    (job,) = [job for job in experiment.jobs([table], device="cpu") if job.model == "static width 50 %"]
    assert table.load is not None
    run = table.train(job, table.load(job, None))
    assert run["macs"]["ffn"] == pytest.approx(0.5)
    assert ffn_macs(dense, ffn_sites(dense)) == 2 * FEATURES * WIDTH * LAYERS
    assert 0.9 < run["quality"]["cosine"] < 1.0
    # steps follow from the mean length of a sentence; the texts are this repository's own, so nothing else is certain
    found, batch = sentences.Sentences(own_texts(("books",)), "train"), tables.QUICK_MINILM["batch"]
    steps = round(tables.QUICK_MINILM["tokens"] / (batch * found.mean_length))
    places = torch.Generator().manual_seed(0)
    drawn = [sentences.alike(found.lengths, batch, places) for _ in range(steps)]
    assert run["tokens"] == sum(int((found.lengths[rows] + 2).sum()) for rows in drawn)


def test_a_student_may_learn_what_every_layer_says_of_every_token() -> None:
    dense, texts = sentence_encoder(None), own_texts(("books",))
    student = copy.deepcopy(dense)
    for name, parameter in student.named_parameters():
        if name.startswith("encoder.layer.1"):  # the first layer gives the same, the second another output
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
    inputs = sentences.Sentences(texts, "valid").batch([0, 1, 2, 5])
    mask = inputs["attention_mask"].bool()
    embeddings = [sentences.embed(model, inputs) for model in (student, dense)]
    apart = 1.0 - F.cosine_similarity(*embeddings).mean()
    outputs = [model(**inputs).last_hidden_state[mask] for model in (student, dense)]
    of_tokens = 1.0 - F.cosine_similarity(*outputs, dim=-1).mean()
    assert apart.item() > 1e-3
    for asked, expected in (({}, apart), ({"of_tokens": 3.0}, apart + 3.0 * of_tokens / LAYERS)):
        task = sentences.Embeddings(dense, texts, {"batch": 4, **asked}, CPU)
        torch.testing.assert_close(task.loss(student, inputs), expected)
        assert task.loss(dense, inputs).item() == pytest.approx(0.0, abs=1e-6)
        dropping = copy.deepcopy(dense).train()
        assert task.loss(dropping, inputs).item() > 1e-3
        students.without_dropout_(dropping)
        assert task.loss(dropping, inputs).item() == pytest.approx(0.0, abs=1e-6)


def test_weights_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DYNAMICGATE_MODELS", str(tmp_path))
    with pytest.raises(ValueError, match=r"hf_weights\.py smollm2 FOLDER"):
        model_folder("smollm2")
    with pytest.raises(ValueError, match="unknown method"):
        Arm(method="magic")  # type: ignore[arg-type]


@pytest.mark.parametrize(("names", "each"), [(TESTED_ON, 500), (("books",), 1000)])
def test_tokens_to_take_along_are_shared_by_the_texts(
    names: tuple[str, ...], each: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: dict[str, int] = {}
    found = own_texts(("books",)).texts["books"]

    def write(name: str, *_: Any, most: int, **_more: Any) -> Any:
        asked[name] = most
        return found

    monkeypatch.setattr(texts_module, "write_sample", write)
    monkeypatch.setattr(texts_module, "model_folder", lambda model: tmp_path / model)
    texts_module.write_texts("any", names, tmp_path, None, 1000)
    assert asked["books"] == round(each * texts_module.BYTES_A_TOKEN["books"])
    assert asked.keys() == set(names)
