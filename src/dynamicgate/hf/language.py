"""Measure a Hugging Face model: loss, bits per byte, executed MACs per token, and how many blocks tokens open together.

Counting rules are those of `dynamicgate.measure`, per token instead of per sample. Padding is no token. With an encoder
and a decoder the tokens of both count. A model that reads no tokens is measured per image. The head, which in small
models with large vocabularies costs as much as everything else, is named apart, and the embedding too: it is looked up,
and costs parameters but no MACs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.accounting.counter import deployed
from dynamicgate.accounting.linear import LayerMacs
from dynamicgate.accounting.shape_counters import ShapeCounters
from dynamicgate.data.contract import iterate, move
from dynamicgate.gating.recording import Usage, named_gates, usage
from dynamicgate.gating.work import ENCODER, Work
from dynamicgate.hf.labels import IGNORED, predicted_labels, predicts_next_token
from dynamicgate.hf.open_blocks import OpenBlocks
from dynamicgate.hf.tokens import counted_positions
from dynamicgate.modules import evaluating, unwrap

CHUNK = 8
NO_CHOICE = ("regression", "multi_label_classification")
"""Values of `config.problem_type` whose loss is not that of one choice among classes or words."""


@dataclass(frozen=True)
class LanguageMeasurement:
    """What a language model, or another Hugging Face model, did on a dataset."""

    quality: dict[str, float]
    """loss (nats a predicted token), perplexity, and bits_per_byte where the number of bytes is known; for a classifier
    of whole samples loss and accuracy; for regression and several labels a sample the loss alone."""
    macs: dict[str, float]
    """Per token, or per image; see `counts`. They are dense and executed, their ratio with the head (`relative`) and
    without it (`relative_without_head`), and of the executed ones those of the head, the gates, everything that is no
    Linear layer (`other`: attention scores and mixing, experts, convolutions) and the embedding."""
    layers: list[dict[str, Any]]
    """For each gate: `open`, the mean fraction of units that one token opens; `open_in_chunk`, what 8 tokens in a row
    open together; `open_in_batch`, what all tokens of a forward pass open together, `batch_tokens` of them."""
    params: dict[str, int]
    """In total, and of them embedding, head (0 if it is tied to the embedding) and gates."""
    tokens: int
    """What MACs are divided by: the sum of `counts`."""
    counts: dict[str, int]
    """What was read, without padding: "tokens"; or those of "encoder" and "decoder"; or "images"; or "samples"."""

    @property
    def relative(self) -> float:
        """The headline: executed MACs per token as a fraction of the dense model's, head included."""
        return self.macs["relative"]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and strings."""
        return asdict(self)

    def __str__(self) -> str:
        m, p = self.macs, self.params
        names = list(self.counts)
        unit = names[0].removesuffix("s") if len(names) == 1 else f"token of {' and '.join(names)}"
        read = {name: f"{count:,}" for name, count in self.counts.items()}
        lines = [
            *(f"{name:<26}{value:.4f}" for name, value in self.quality.items()),
            f"{'executed MACs':<26}{m['executed']:,.0f} of {m['dense']:,.0f} per {unit} = {m['relative']:.4f}",
            f"{'  without the head':<26}{m['relative_without_head']:.4f}",
            *(f"{f'  of which {name}':<26}{m[name]:,.0f}" for name in ("head", "gates", "other", "embedding")),
            f"{'parameters':<26}{p['total']:,}, embedding {p['embedding']:,}, head {p['head']:,}, gates {p['gates']:,}",
            *(f"{name if len(names) == 1 else f'{name} tokens':<26}{count}" for name, count in read.items()),
        ]
        if self.layers:
            lines += ["", f"{'gate':<34}{'open':>8}{'in 8':>8}{'in batch':>10}"]
        for row in self.layers:
            chunk = "" if row["open_in_chunk"] is None else f"{row['open_in_chunk']:.4f}"
            lines.append(f"{row['name']:<34}{row['open']:>8.4f}{chunk:>8}{row['open_in_batch']:>10.4f}")
        return "\n".join(lines)


@torch.no_grad()
def measure(
    model: nn.Module, data: Any, *, batch: int = 16, text_bytes: int | None = None, tokenizer: Any = None
) -> LanguageMeasurement:
    """Run a Hugging Face model in evaluation mode over `data` and account for every token.

    data: token ids [sequences, positions] or images, a mapping of tensors (input_ids, attention_mask, labels; or
        pixel_values, labels), a pair (inputs, labels), or an iterable of such batches. Without labels a causal language
        model is measured on its own input; padding has no label.
    text_bytes: how long the predicted text is, for bits per byte; or a `tokenizer`, which decodes the predicted tokens
        to find out.
    """
    base = unwrap(model)
    tally = _Tally(base)
    device = next(base.parameters()).device
    bytes_found = 0
    with evaluating(base):
        for found, labels in iterate(data, batch):
            inputs = move(_without_router_loss(base, _as_keywords(base, found, labels)), device)
            assert isinstance(inputs, Mapping)
            with usage(base) as used:
                output = base(**inputs)
            tally.add(used, inputs, output)
            if tokenizer is not None:
                bytes_found += _decoded_bytes(tokenizer, predicted_labels(base, inputs))
    if not tally.tokens:
        raise ValueError("nothing to measure: the dataset is empty")
    return tally.result(text_bytes if tokenizer is None else bytes_found)


def _as_keywords(model: nn.Module, inputs: Any, labels: Tensor | None) -> dict[str, Any]:
    """What the model is called with, labels included."""
    main = getattr(model, "main_input_name", "input_ids")
    if isinstance(inputs, Tensor):
        inputs = {main: inputs}
    if not isinstance(inputs, Mapping):
        raise TypeError(
            f"a batch for a Hugging Face model is token ids, images or a mapping of tensors, received "
            f"{type(inputs).__name__}"
        )
    readable = dict.fromkeys(["input_ids", "inputs_embeds", main])
    if not any(isinstance(inputs.get(name), Tensor) for name in readable):
        raise ValueError(f"expected {' or '.join(readable)} in every batch, received {', '.join(inputs)}")
    if labels is not None:
        return {**inputs, "labels": labels}
    ids = inputs.get("input_ids")
    if "labels" in inputs or not isinstance(ids, Tensor) or not predicts_next_token(model):
        return dict(inputs)
    return {**inputs, "labels": _own_labels(ids, inputs)}


def _own_labels(ids_BT: Tensor, given: Mapping[str, Any]) -> Tensor:
    """The tokens themselves, where there is a token before: nothing is predicted from padding."""
    tokens_BT = counted_positions(given.get("attention_mask"), (ids_BT.shape[0], ids_BT.shape[1]), given)
    if tokens_BT is None:
        return ids_BT
    after_token_BT = torch.nn.functional.pad(tokens_BT[:, :-1], (1, 0), value=True)
    return ids_BT.masked_fill(~(tokens_BT & after_token_BT), IGNORED)


def _without_router_loss(model: nn.Module, given: dict[str, Any]) -> dict[str, Any]:
    """Transformers adds a loss for the balance of experts to that of the labels whenever it returns router logits."""
    by_default = getattr(getattr(model, "config", None), "output_router_logits", False)
    return {**given, "output_router_logits": False} if given.get("output_router_logits", by_default) else given


def _decoded_bytes(tokenizer: Any, labels: Tensor | None) -> int:
    if labels is None:
        return 0
    rows = [row[row != IGNORED].tolist() for row in labels]
    return sum(len(tokenizer.decode(row, skip_special_tokens=True).encode("utf-8")) for row in rows)


def _counts(work: Work, inputs: Mapping[str, Any]) -> dict[str, int]:
    """The tokens of a forward pass, or what there is instead."""
    decoders = [name.removesuffix(ENCODER) for name, n in work.tokens.items() if name.endswith(ENCODER) and n]
    if decoders:
        decoder = max(decoders, key=len)
        return {"encoder": int(work.tokens[f"{decoder}{ENCODER}"]), "decoder": int(work.tokens[decoder])}
    tokens = int(max(work.tokens.values()))
    if tokens or any(name in inputs for name in ("input_ids", "inputs_embeds")):  # which may be all padding
        return {"tokens": tokens}
    return {"images" if "pixel_values" in inputs else "samples": work.samples}


class _Tally:
    """Sums over batches; nothing is averaged before the end."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.counters = ShapeCounters(model)
        self.counts: Counter[str] = Counter()
        self.predicted = self.right = self.classified = 0
        self.loss = self.dense = 0.0
        self.chooses = True
        """Whether each prediction is a choice of one word or class, so that perplexity or accuracy mean something."""
        self.parts = dict.fromkeys(("executed", "head", "head_dense", "gates", "other"), 0.0)
        self.open = {name: OpenBlocks(gate, CHUNK) for name, gate in named_gates(model).items()}
        self.head = _embeddings(model, "get_output_embeddings")

    @property
    def tokens(self) -> int:
        """Everything that was read."""
        return sum(self.counts.values())

    def add(self, used: Usage, inputs: Mapping[str, Any], output: Any) -> None:
        work = used.work
        if work is None:
            raise TypeError(
                f"expected a Hugging Face model, received {type(self.model).__name__}: use dynamicgate.measure"
            )
        counter = self.counters.counter_for(inputs).at(work)
        open_blocks = deployed(counter.gates, used)
        for part in counter.parts:
            found = part.executed(open_blocks).double()
            macs = float(found.sum()) / max(1, found.numel()) * part.rows * work.samples  # a batch may be all padding
            self.parts["executed"] += macs
            if isinstance(part, LayerMacs) and part.linear is self.head:
                self.parts["head"] += macs
                self.parts["head_dense"] += part.dense * part.rows * work.samples
        self.parts["gates"] += counter.gate * work.samples
        self.parts["other"] += counter.other * work.samples
        self.dense += counter.dense * work.samples
        for name, blocks in open_blocks.items():
            self.open[name].add(blocks, used.lengths(name))
        self.counts.update(_counts(work, inputs))
        self._add_quality(inputs, output)

    def _add_quality(self, inputs: Mapping[str, Any], output: Any) -> None:
        labels = predicted_labels(self.model, inputs)
        if labels is None or getattr(output, "loss", None) is None:
            return
        no_choice = getattr(getattr(self.model, "config", None), "problem_type", None) in NO_CHOICE
        self.chooses &= not (no_choice or labels.is_floating_point())
        count = labels.numel() if labels.is_floating_point() else int((labels != IGNORED).sum())
        if not count:  # the mean over nothing, which Transformers gives as the loss, is NaN
            return
        self.loss += float(output.loss) * count
        self.predicted += count
        logits = getattr(output, "logits", None)
        if labels.ndim == 1 and self.chooses and isinstance(logits, Tensor) and logits.ndim == 2:
            self.right += int((logits.argmax(-1) == labels).sum())
            self.classified += count

    def result(self, text_bytes: int | None) -> LanguageMeasurement:
        executed = self.parts["executed"] + self.parts["gates"] + self.parts["other"]
        quality: dict[str, float] = {}
        if self.predicted:
            loss = self.loss / self.predicted
            quality = {"loss": loss}
            if self.classified and self.chooses:
                quality["accuracy"] = self.right / self.classified
            elif self.chooses:
                quality["perplexity"] = math.exp(min(loss, 700.0))
            if text_bytes and self.chooses:
                quality["bits_per_byte"] = self.loss / math.log(2.0) / text_bytes
        body = self.dense - self.parts["head_dense"]
        return LanguageMeasurement(
            quality=quality,
            macs={
                "dense": self.dense / self.tokens,
                "executed": executed / self.tokens,
                "relative": executed / self.dense,
                "relative_without_head": (executed - self.parts["head"]) / body,
                "head": self.parts["head"] / self.tokens,
                "gates": self.parts["gates"] / self.tokens,
                "other": self.parts["other"] / self.tokens,
                "embedding": 0.0,
            },
            layers=[{"name": name, **blocks.to_dict()} for name, blocks in self.open.items()],
            params=_parameters(self.model, self.head),
            tokens=self.tokens,
            counts=dict(self.counts),
        )


def _embeddings(model: nn.Module, getter: str) -> nn.Module | None:
    """The layer that a method of the model gives; None where it has none, or several as CLIP has."""
    try:
        found = getattr(model, getter, lambda: None)()
    except NotImplementedError:
        return None
    return found if isinstance(found, nn.Module) else None


def _parameters(model: nn.Module, head: nn.Module | None) -> dict[str, int]:
    embedding = _embeddings(model, "get_input_embeddings")
    looked_up = set() if embedding is None else {id(p) for p in embedding.parameters()}
    return {
        "total": sum(p.numel() for p in model.parameters()),
        "embedding": 0 if embedding is None else sum(p.numel() for p in embedding.parameters()),
        "head": 0 if head is None else sum(p.numel() for p in head.parameters() if id(p) not in looked_up),
        "gates": sum(p.numel() for gate in named_gates(model).values() for p in gate.parameters()),
    }
