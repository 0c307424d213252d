"""The model card of a gated model, for `push_to_hub`."""

from __future__ import annotations

from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedModel

from dynamicgate.gating.recording import named_gates
from dynamicgate.hf.language import LanguageMeasurement

TAGS = ["dynamicgate", "conditional-computation", "sparsity"]
TEXT = """---
{card_data}
---

# {name}

{count} gates of [DynamicGate](https://github.com/dynamicgate/dynamicgate) decide for every token which blocks of hidden
units it needs.{executed} Without the package the model does not load.

```python
import dynamicgate.hf  # pip install "dynamicgate[hf]"

model = dynamicgate.hf.load("{name}")
```

{details}
"""


def card(
    model: PreTrainedModel,
    measurement: LanguageMeasurement | None = None,
    *,
    name: str | None = None,
    dataset: str = "text",
) -> ModelCard:
    """The card of a gated model: what it is, how to load it and what it costs. Use its `save` or `push_to_hub`.

    name: of the repository; None takes the name the base model was loaded by. dataset: what `measurement` was made on.
    """
    gates = named_gates(model)
    if not gates:
        raise ValueError("this model has no gates: call dynamicgate.gate_(model, ...) first")
    source = getattr(model.config, "_name_or_path", "") or None
    title = name or source or type(model).__name__
    found = [] if measurement is None else _results(measurement, dataset)
    data = ModelCardData(
        library_name="transformers", tags=TAGS, base_model=source, model_name=title if found else None,
        eval_results=found or None,
    )  # fmt: skip
    executed = "" if measurement is None else f" It executes {measurement.relative:.1%} of the dense model's MACs."
    details = "" if measurement is None else f"```\n{measurement}\n```"
    text = TEXT.format(card_data=data.to_yaml(), name=title, count=len(gates), executed=executed, details=details)
    return ModelCard(text)


def _results(measurement: LanguageMeasurement, dataset: str) -> list[EvalResult]:
    values = {**measurement.quality, "executed_macs_per_token": measurement.macs["executed"]}
    values["executed_macs_relative"] = measurement.relative
    about: dict[str, Any] = {"task_type": "text-generation", "dataset_type": dataset, "dataset_name": dataset}
    return [EvalResult(**about, metric_type=metric, metric_value=value) for metric, value in values.items()]
