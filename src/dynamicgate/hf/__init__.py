"""Gates in Hugging Face models: saving, training with `Trainer`, measuring, conversion. Needs the extra `hf`.

Importing it makes `from_pretrained` understand models that were saved with gates.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import transformers as _transformers
except ImportError as error:
    raise ImportError("dynamicgate.hf needs Transformers: pip install 'dynamicgate[hf]'") from error

from dynamicgate.hf import saving as _saving

if TYPE_CHECKING:
    from dynamicgate.hf.adapters import train_gates_
    from dynamicgate.hf.distillation import kl_divergence
    from dynamicgate.hf.language import LanguageMeasurement, measure
    from dynamicgate.hf.model_card import card
    from dynamicgate.hf.saving import load
    from dynamicgate.hf.trainer import GateCallback, GatedTrainer, GatedTrainerMixin

del _transformers, _saving

_HOME = {
    "GateCallback": "trainer",
    "GatedTrainer": "trainer",
    "GatedTrainerMixin": "trainer",
    "LanguageMeasurement": "language",
    "card": "model_card",
    "kl_divergence": "distillation",
    "load": "saving",
    "measure": "language",
    "train_gates_": "adapters",
}
__all__ = [
    "GateCallback",
    "GatedTrainer",
    "GatedTrainerMixin",
    "LanguageMeasurement",
    "card",
    "kl_divergence",
    "load",
    "measure",
    "train_gates_",
]


def __getattr__(name: str) -> Any:
    """Imported when first used: the Trainer takes seconds to import."""
    if name in _HOME:
        return getattr(import_module(f"dynamicgate.hf.{_HOME[name]}"), name)
    raise AttributeError(f"module 'dynamicgate.hf' has no attribute {name!r}")
