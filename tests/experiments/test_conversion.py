"""Converted models: what every arm executes, by hand; what is removed and kept; training that resumes; the page."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
from experiments.conversion import experts, language, sentences, students, tables
from experiments.conversion import texts as texts_module
from experiments.conversion.measuring import measure_student
from experiments.conversion.models import ffn_macs, ffn_sites, language_model, sentence_encoder
from experiments.conversion.selections import Oracle, Threshold, kept_at
from experiments.conversion.static_width import importance, most_important, remove_units_
from experiments.conversion.students import Arm, Samples, Student, make_student
from experiments.conversion.texts import TESTED_ON, Texts, Windows, model_folder, own_texts
from experiments.conversion.training import DistillationRun, Training, in_parts
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM

import dynamicgate as dg
from dynamicgate.lab.language.text import PARTS, Text
from dynamicgate.lab.language.tokenizers import Bytes
from dynamicgate.lab.runner import Experiment

CPU = torch.device("cpu")
FEATURES, WIDTH, LAYERS, VOCABULARY, CONTEXT = 32, 128, 2, 256, 16
FFN = 3 * FEATURES * WIDTH * LAYERS
ATTENTION = LAYERS * (2 * FEATURES * 32 + 2 * FEATURES * 16 + 2 * FEATURES * (CONTEXT + 1) / 2)
REST = ATTENTION + FEATURES * VOCABULARY  # and the head; a token sees half of the window on average
ASKED = {"batch": 4, "context": CONTEXT, "windows": 4}


def ids(rows: int, seed: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (rows, CONTEXT), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def dense() -> nn.Module:
    """With larger weights than a random Llama has, so that its units differ."""
    model = language_model(None).requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.mul_(8.0)
    return model


@pytest.fixture(scope="module")
def samples() -> Samples:
    return Samples([{"input_ids": ids(8, seed)} for seed in range(2)], [{"input_ids": ids(8, 9)}])


@pytest.fixture(scope="module")
def texts() -> Texts:
    """The same words whatever the files of this repository say."""
    words = [bytes(w) for w in np.random.default_rng(0).integers(97, 123, (400, 5), dtype=np.uint8)]
    found = {}
    for number, name in enumerate(TESTED_ON):
        draw = np.random.default_rng(number + 1)
        raw = {part: b" ".join(words[i] for i in draw.zipf(1.3, 4000) % 400) for part in PARTS}
        tokens = {part: Bytes().encode(text) for part, text in raw.items()}
        found[name] = Text(name, "bytes", Bytes.size, tokens, {part: len(text) for part, text in raw.items()}, {})
    return Texts(found, None)


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


def run_of(arm: Arm, dense: nn.Module, samples: Samples, texts: Texts, folder: Path) -> DistillationRun:
    torch.manual_seed(0)
    student = make_student(arm, dense, samples)
    student.model.requires_grad_(True)
    task = language.NextTokens(dense, texts, ASKED, CPU)
    training = Training(steps=8, lr=1e-3)
    return DistillationRun(
        student.model, student.budget, task, training, settings={"ffn": arm.ffn}, device=CPU, folder=folder
    )


@pytest.mark.parametrize("method", ["gate", "magnitude", "static width", "experts"])
def test_training_resumes_to_the_same_student(
    method: Any, dense: nn.Module, samples: Samples, texts: Texts, tmp_path: Path
) -> None:
    arm = Arm(method=method, ffn=0.5)
    whole = run_of(arm, dense, samples, texts, tmp_path / "whole")
    whole.train()
    broken = run_of(arm, dense, samples, texts, tmp_path / "broken")
    broken.student.train()
    for _ in range(5):
        broken._recent.append(broken.optimize())
        broken._note()
    broken.save()
    resumed = run_of(arm, dense, samples, texts, tmp_path / "broken")
    resumed.train()
    assert resumed.step == 8
    assert resumed.tokens == whole.tokens == 8 * 4 * CONTEXT
    assert resumed.curve == whole.curve
    expected = whole.student.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in resumed.student.state_dict().items())
    rates = [group["base_lr"] for group in whole.optimizer.param_groups]
    assert rates == ([1e-3] if method == "static width" else [1e-3, 1e-3])


@pytest.mark.parametrize("method", ["magnitude", "static width"])
def test_a_batch_in_parts_gives_the_gradients_of_the_whole(
    method: Any, dense: nn.Module, samples: Samples, texts: Texts, tmp_path: Path
) -> None:
    curves = []
    for at_once in (None, 2):
        run = run_of(Arm(method=method, ffn=0.5), dense, samples, texts, tmp_path / str(at_once))
        run.training = replace(run.training, at_once=at_once)
        run.budget = None  # it reads the first part alone
        curves.append([float(run.optimize()) for _ in range(4)])
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)
    with pytest.raises(ValueError, match="no equal parts of 3"):
        in_parts({"input_ids": ids(4, 0)}, 3)


def test_a_short_training_is_enough_for_the_budget(
    dense: nn.Module, samples: Samples, texts: Texts, tmp_path: Path
) -> None:
    run = run_of(Arm(method="gate", ffn=0.5, block=8), dense, samples, texts, tmp_path)
    run.training = replace(run.training, steps=61)  # as many as 2 M tokens are
    executed = []
    for _ in range(61):
        run.optimize()
        assert run.budget is not None
        executed.append(run.budget.relative)
    assert executed[0] == pytest.approx(1.0, abs=0.03)
    assert fmean(executed[45:]) == pytest.approx(run.budget.target, abs=0.015)  # before any calibration


def test_gates_learn_at_their_own_rate(dense: nn.Module, samples: Samples, texts: Texts, tmp_path: Path) -> None:
    run = run_of(Arm(method="experts", ffn=0.5), dense, samples, texts, tmp_path)
    run.training = replace(run.training, lr=1e-4)
    names = {id(p): name for name, p in run.student.named_parameters()}
    weights, gates = run.optimizer.param_groups
    assert all(".gate." in names[id(p)] for p in gates["params"])
    assert not any(".gate." in names[id(p)] for p in weights["params"])
    assert len(weights["params"]) + len(gates["params"]) == len(names)
    assert (Training(steps=1).lr, Training(steps=1).gate_lr) == (1e-4, 1e-3)


def test_the_loss_is_the_divergence_and_a_tenth_of_the_text(dense: nn.Module, texts: Texts) -> None:
    student = copy.deepcopy(dense)
    for parameter in student.parameters():
        parameter.mul_(0.9)
    task = language.NextTokens(dense, texts, ASKED, CPU)
    inputs = task.draw(torch.Generator().manual_seed(0))
    found, wanted = (model(**inputs).logits[:, :-1].log_softmax(-1) for model in (student, dense))
    divergence = F.kl_div(found, wanted, reduction="none", log_target=True).sum(-1).mean()
    text = F.nll_loss(found.flatten(0, 1), inputs["input_ids"][:, 1:].flatten())
    torch.testing.assert_close(task.loss(student, inputs), divergence + 0.1 * text)


def test_batches_are_half_of_each_text(texts: Texts) -> None:
    marked = {}
    for value, name in ((3, "books"), (4, "python")):
        text = texts.texts[name]
        marked[name] = replace(text, tokens={"train": text.tokens["train"] * 0 + value})
    windows = Windows(Texts(marked, None), "train", CONTEXT, CPU)
    drawn = windows.draw(6, torch.Generator().manual_seed(0))
    assert sorted(drawn[:, 0].tolist()) == [3, 3, 3, 4, 4, 4]
    (fixed,) = windows.fixed(5, 8)
    assert fixed[:, 0].tolist() == [3, 4, 3, 4, 3]


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
