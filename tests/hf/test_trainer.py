"""`Trainer` with `GateCallback` does what a loop of one's own does, and continues exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

import dynamicgate as dg
from dynamicgate import hf
from dynamicgate.budget import OpenLoopBudget
from dynamicgate.sparsity import RigL
from tests.hf.tiny import PAD, gated, tiny_bert, tiny_llama, tokens

MICRO, LENGTH = 2, 8
ROWS = 24
BLOCKS = 0.75  # of the dense MACs: attention, head and the open blocks of a tiny model


def sentences(count: int) -> list[dict[str, Tensor]]:
    """Rows of different lengths from a language with few words, so that there is something to learn."""
    rows = tokens(count, LENGTH, seed=5) % 8 + 3
    lengths = 3 + torch.arange(count) % (LENGTH - 2)
    return [{"input_ids": row[: int(length)]} for row, length in zip(rows, lengths, strict=True)]


def collate(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    ids = torch.full((len(rows), LENGTH), PAD)
    mask = torch.zeros_like(ids)
    for row, out, ones in zip(rows, ids, mask, strict=True):
        out[: len(row["input_ids"])] = row["input_ids"]
        ones[: len(row["input_ids"])] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def arguments(out: Path, **changed: Any) -> TrainingArguments:
    given: dict[str, Any] = {
        "max_steps": 12,
        "per_device_train_batch_size": MICRO,
        "gradient_accumulation_steps": 2,
        "train_sampling_strategy": "sequential",
        "optim": "adamw_torch",
        "learning_rate": 3e-3,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 0.0,
        "logging_steps": 4,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "remove_unused_columns": False,
    }
    return TrainingArguments(output_dir=str(out), **{**given, **changed})


def trainer(model: PreTrainedModel, callback: Any, out: Path, cls: type[Trainer] = Trainer, **changed: Any) -> Trainer:
    args = arguments(out, **changed)
    rows = sentences(ROWS)
    return cls(model, args, train_dataset=rows, data_collator=collate, callbacks=[callback])  # type: ignore[arg-type]


def own_loop(
    model: PreTrainedModel, budget: dg.Budget, steps: int, *, accumulate: int = 2, sparsifier: RigL | None = None
) -> None:
    """The same run, written out."""
    rows = sentences(ROWS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    model.train()
    for step in range(steps):
        now, start = step / steps, step * MICRO * accumulate % len(rows)
        batches = [collate(rows[start + i * MICRO :][:MICRO]) for i in range(accumulate)]
        counts = [int((batch["labels"][:, 1:] != -100).sum()) for batch in batches]
        budget.apply_(model, now)
        for position, (batch, count) in enumerate(zip(batches, counts, strict=True)):
            with dg.usage(model) as used:
                loss = model(**batch, num_items_in_batch=sum(counts)).loss
            penalty = budget.penalty(used) if position else budget.step(used, now)
            penalty = penalty * (count / sum(counts))
            if sparsifier is not None:
                sparsifier.watch(used, penalty)
            (loss + penalty).backward()
        if sparsifier is not None:
            sparsifier.step(optimizer, now)
        optimizer.step()
        optimizer.zero_grad()


def largest_difference(a: torch.nn.Module, b: torch.nn.Module) -> float:
    theirs = b.state_dict()
    assert a.state_dict().keys() == theirs.keys()
    return max(float((value.float() - theirs[name].float()).abs().max()) for name, value in a.state_dict().items())


def tiny_gated(layers: int = 2) -> PreTrainedModel:
    return gated(tiny_llama(layers=layers), open=0.9, spread=0.3)


@pytest.mark.slow
def test_forty_steps_with_accumulation_end_at_the_weights_of_an_own_loop(tmp_path: Path) -> None:
    mine, theirs = tiny_gated(layers=1), tiny_gated(layers=1)
    budget = dg.Budget(target=BLOCKS)
    own_loop(mine, budget, 40, accumulate=4)
    data = [collate(sentences(ROWS)[i : i + MICRO]) for i in range(0, ROWS, MICRO)]
    budget.calibrate_(mine, data)
    callback = hf.GateCallback(dg.Budget(target=BLOCKS), calibrate=len(data))
    run = trainer(theirs, callback, tmp_path, max_steps=40, gradient_accumulation_steps=4)
    run.train()
    assert largest_difference(mine, theirs) < 1e-6
    assert largest_difference(mine, tiny_gated(layers=1)) > 0.05, "they have learned something"
    assert hf.measure(theirs, data).relative == pytest.approx(BLOCKS, abs=0.01)
    logged = [row for row in run.state.log_history if "executed_macs" in row]
    assert len(logged) == 10
    assert logged[-1]["executed_macs"] == pytest.approx(budget.relative, abs=1e-6)
    assert {"gate_penalty", "gate_lambda", "gates_open", "loss"} <= logged[-1].keys()


def test_the_budget_is_met_after_calibration(tmp_path: Path) -> None:
    model = tiny_gated()
    trainer(model, hf.GateCallback(dg.Budget(target=BLOCKS, anneal=0.3), calibrate=ROWS), tmp_path).train()
    data = [collate(sentences(ROWS)[i : i + MICRO]) for i in range(0, ROWS, MICRO)]
    assert hf.measure(model, data).relative == pytest.approx(BLOCKS, abs=0.01)
    assert not model._forward_hooks, "the callback leaves nothing behind"


def test_the_trainer_divides_by_the_accumulation_where_the_model_does_not(tmp_path: Path) -> None:
    """A model that takes no num_items_in_batch returns the mean over a micro-batch."""

    def masked(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        batch = collate(rows)
        return {**batch, "labels": batch["labels"].masked_fill(torch.arange(LENGTH) % 2 == 0, -100)}

    mine, theirs = (gated(tiny_bert(), open=0.9, spread=0.3).train() for _ in range(2))
    theirs.accepts_loss_kwargs = False  # as Transformers lets a model say
    budget, rows = dg.Budget(target=BLOCKS), sentences(ROWS)
    optimizer = torch.optim.AdamW(mine.parameters(), lr=3e-3, weight_decay=0.0)
    for step in range(12):
        budget.apply_(mine, step / 12)
        for position in range(2):
            start = (2 * step + position) * MICRO % ROWS
            with dg.usage(mine) as used:
                loss = mine(**masked(rows[start : start + MICRO])).loss
            penalty = budget.penalty(used) if position else budget.step(used, step / 12)
            ((loss + penalty) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    callback = hf.GateCallback(dg.Budget(target=BLOCKS), calibrate=0)
    args = arguments(tmp_path)
    Trainer(theirs, args, train_dataset=rows, data_collator=masked, callbacks=[callback]).train()  # type: ignore[arg-type]
    assert largest_difference(mine, theirs) < 1e-6


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step == self.step


@pytest.mark.parametrize(("masks", "at"), [(False, 5), (False, 8), (True, 5)])  # in the first epoch, and the second
def test_a_run_that_was_stopped_continues_to_the_same_weights(tmp_path: Path, masks: bool, at: int) -> None:
    def built() -> tuple[PreTrainedModel, hf.GateCallback]:
        model = gated(tiny_llama(), open=0.9, spread=0.3, train="bernoulli")
        sparsifier = RigL(model, density=0.5, every=2, include=["*mlp*_proj"]) if masks else None
        budget = dg.Budget(target=0.6 if masks else BLOCKS, tau=dg.schedule.linear(1.0, 0.5))
        return model, hf.GateCallback(budget, sparsifier)

    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": at, "train_sampling_strategy": "random"}
    whole, callback = built()
    trainer(whole, callback, tmp_path / "whole", **options).train()
    stopped, callback = built()
    run = trainer(stopped, callback, tmp_path / "two", **options)
    run.add_callback(StopAt(at))
    run.train()
    assert largest_difference(whole, stopped) > 1e-4
    resumed, callback = built()
    trainer(resumed, callback, tmp_path / "two", **options).train(resume_from_checkpoint=True)
    assert largest_difference(whole, resumed) == 0.0


def test_masks_are_those_of_an_own_loop(tmp_path: Path) -> None:
    models = [tiny_gated() for _ in range(3)]
    sparsifiers = [RigL(model, density=0.5, every=3, include=["*mlp*_proj"]) for model in models]
    budgets = [dg.Budget(target=0.6) for _ in models]
    budgets[0].sparsifier = sparsifiers[0]
    own_loop(models[0], budgets[0], 12, sparsifier=sparsifiers[0])
    for position, cls in ((1, Trainer), (2, hf.GatedTrainer)):
        callback = hf.GateCallback(budgets[position], sparsifiers[position], calibrate=0)
        trainer(models[position], callback, tmp_path, cls).train()
        assert sparsifiers[position].updates == sparsifiers[0].updates >= 2
        assert sparsifiers[position].fingerprint() == sparsifiers[0].fingerprint()
        assert largest_difference(models[0], models[position]) < 1e-6


class Seen(TrainerCallback):
    """A logger: what it is told, and when."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.rows.append(dict(logs))


def test_the_mixin_tells_every_logger_and_weight_decay_leaves_the_biases_of_gates_alone(tmp_path: Path) -> None:
    seen = Seen()
    args = arguments(tmp_path, max_steps=4, weight_decay=0.1)
    model = tiny_gated()
    callbacks = [seen, hf.GateCallback(dg.Budget(target=BLOCKS))]
    run = hf.GatedTrainer(model, args, train_dataset=sentences(32), data_collator=collate, callbacks=callbacks)
    run.train()
    assert "executed_macs" in seen.rows[0]
    decayed = {id(p) for group in run.optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    gates = dg.named_gates(model).values()
    assert not decayed & {id(gate.bias) for gate in gates}, "they hold the budget"
    assert decayed >= {id(p) for gate in gates for p in gate.parameters() if p.ndim == 2}, "as fit does it"


def test_gradient_checkpointing_ends_at_the_same_weights(tmp_path: Path) -> None:
    models = [tiny_gated(), tiny_gated()]
    for model, checkpointing in zip(models, (False, True), strict=True):
        callback = hf.GateCallback(dg.Budget(target=BLOCKS), calibrate=0)
        trainer(model, callback, tmp_path, gradient_checkpointing=checkpointing).train()
    assert largest_difference(*models) < 1e-6


def test_reentrant_checkpointing_is_refused(tmp_path: Path) -> None:
    callback = hf.GateCallback(dg.Budget(target=BLOCKS))
    options = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
    with pytest.raises(ValueError, match="use_reentrant"):
        trainer(tiny_gated(), callback, tmp_path, **options).train()


def test_a_teacher_is_followed(tmp_path: Path) -> None:
    teacher = tiny_llama(seed=3).eval()
    student = tiny_gated()
    held_out = collate(sentences(8))

    def distance() -> float:
        with torch.no_grad():
            scores = [m.eval()(input_ids=held_out["input_ids"]).logits for m in (student, teacher)]
        return float(hf.kl_divergence(*scores).mean())

    before = distance()
    callback = hf.GateCallback(teacher=teacher, distill_weight=1.0)
    trainer(student, callback, tmp_path, max_steps=20, learning_rate=1e-2).train()
    assert distance() < 0.6 * before
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_a_loss_from_elsewhere_is_refused(tmp_path: Path) -> None:
    callback = hf.GateCallback(dg.Budget(target=BLOCKS))
    with pytest.raises(RuntimeError, match="label_smoothing_factor"):
        trainer(tiny_gated(), callback, tmp_path, label_smoothing_factor=0.1).train()


def test_a_callback_without_anything_to_do_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a budget"):
        hf.GateCallback()
    with pytest.raises(ValueError, match="pass teacher="):
        hf.GateCallback(dg.Budget(target=0.5), distill_weight=0.5)
    with pytest.raises(ValueError, match="0 < distill_weight <= 1"):
        hf.GateCallback(teacher=tiny_llama(), distill_weight=1.5)


def test_a_checkpoint_of_a_run_without_the_callback_is_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}
    trainer(tiny_gated(), StopAt(2), tmp_path, **options).train()
    run = trainer(tiny_gated(), hf.GateCallback(dg.Budget(target=BLOCKS)), tmp_path, **options)
    with pytest.raises(ValueError, match="made without a GateCallback"):
        run.train(resume_from_checkpoint=True)


class StoppedByHandError(Exception):
    """As Ctrl-C in a notebook."""


class InterruptAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise StoppedByHandError


@pytest.mark.parametrize("anew", [False, True])
def test_a_run_after_an_interrupted_one_adds_one_penalty(tmp_path: Path, anew: bool) -> None:
    models = [tiny_gated(), tiny_gated()]
    start = {name: value.clone() for name, value in models[0].state_dict().items()}
    callback = hf.GateCallback(dg.Budget(target=BLOCKS), calibrate=0)
    run = trainer(models[0], callback, tmp_path)
    run.add_callback(InterruptAt(2))
    with pytest.raises(StoppedByHandError):
        run.train()
    models[0].load_state_dict(start)
    models[0].zero_grad()
    again = hf.GateCallback(dg.Budget(target=BLOCKS), calibrate=0) if anew else callback
    trainer(models[0], again, tmp_path).train()
    trainer(models[1], hf.GateCallback(dg.Budget(target=BLOCKS), calibrate=0), tmp_path).train()
    assert largest_difference(*models) == 0.0


def test_an_open_loop_budget_is_held_too(tmp_path: Path) -> None:
    model = tiny_gated()
    callback = hf.GateCallback(OpenLoopBudget(form="linear", weight=3.0))
    run = trainer(model, callback, tmp_path, max_steps=30, save_strategy="steps", save_steps=30)
    run.train()
    logged = [row for row in run.state.log_history if "gate_lambda" in row]
    assert logged[-1]["gate_lambda"] == 3.0
    assert logged[-1]["gate_penalty"] < logged[0]["gate_penalty"]


def test_evaluation_during_training_is_left_alone(tmp_path: Path) -> None:
    rows = sentences(ROWS)
    runs = []
    for strategy in ("no", "steps"):
        model = tiny_gated()
        args = arguments(tmp_path, eval_strategy=strategy, eval_steps=2)
        callback = hf.GateCallback(dg.Budget(target=BLOCKS), calibrate=0)
        options: dict[str, Any] = {"data_collator": collate, "callbacks": [callback]}
        Trainer(model, args, train_dataset=rows, eval_dataset=rows[:4], **options).train()
        runs.append(model)
    assert largest_difference(*runs) == 0.0


def with_evaluation(model: PreTrainedModel, out: Path, **changed: Any) -> Trainer:
    rows = sentences(ROWS)
    args = arguments(out, save_strategy="steps", save_steps=4, eval_strategy="steps", eval_steps=4, **changed)
    callback = hf.GateCallback(dg.Budget(target=BLOCKS, anneal=0.3), calibrate=ROWS)
    options: dict[str, Any] = {"data_collator": collate, "callbacks": [callback]}
    return Trainer(model, args, train_dataset=rows, eval_dataset=rows[:8], **options)


def executed(model: PreTrainedModel) -> float:
    return hf.measure(model, [collate(sentences(ROWS)[i : i + MICRO]) for i in range(0, ROWS, MICRO)]).relative


def test_the_last_checkpoint_and_the_last_evaluation_are_of_the_calibrated_model(tmp_path: Path) -> None:
    model = tiny_gated()
    run = with_evaluation(model, tmp_path)
    run.train()
    assert executed(model) == pytest.approx(BLOCKS, abs=0.01)
    last = hf.load(tmp_path / "checkpoint-12")
    assert largest_difference(model, last) == 0.0
    (logged,) = (row["eval_loss"] for row in run.state.log_history if row.get("step") == 12 and "eval_loss" in row)
    assert run.evaluate()["eval_loss"] == logged


@pytest.mark.parametrize("first", [True, False])
def test_the_best_model_is_calibrated_once_it_is_loaded(tmp_path: Path, first: bool) -> None:
    """The loss falls: it is highest at the first checkpoint, and lowest at the last, which is calibrated already."""
    model = tiny_gated()
    options = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": first}
    run = with_evaluation(model, tmp_path, learning_rate=0.3, **options)
    run.train()
    best = hf.load(run.state.best_model_checkpoint)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, best.state_dict()[name])}
    assert Path(run.state.best_model_checkpoint).name == ("checkpoint-4" if first else "checkpoint-12")
    biases = {name for name in model.state_dict() if name.endswith("gate.net.bias")}
    assert moved == (biases if first else set()), "calibration moves nothing else"
    assert executed(model) == pytest.approx(BLOCKS, abs=0.01)


def test_the_best_model_of_a_run_that_stops_early_is_calibrated_too(tmp_path: Path) -> None:
    model = tiny_gated()
    options = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": False}
    run = with_evaluation(model, tmp_path, learning_rate=0.1, **options)
    run.add_callback(StopAt(4))
    run.train()
    assert Path(run.state.best_model_checkpoint).name == "checkpoint-4"
    assert abs(executed(hf.load(tmp_path / "checkpoint-4")) - BLOCKS) > 0.02
    assert executed(model) == pytest.approx(BLOCKS, abs=0.01)


def test_two_callbacks_in_one_trainer_are_refused_with_a_sentence(tmp_path: Path) -> None:
    run = trainer(tiny_gated(), hf.GateCallback(dg.Budget(target=BLOCKS)), tmp_path)
    run.add_callback(hf.GateCallback(teacher=tiny_llama()))
    with pytest.raises(RuntimeError, match="more than one GateCallback"):
        run.train()
