"""Gates in Hugging Face models: saving, training with `Trainer`, measuring, conversion. Needs the extra `hf`.

Importing it makes `from_pretrained` understand models and adapters that were saved with gates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import transformers as _transformers
except ImportError as error:
    raise ImportError("dynamicgate.hf needs Transformers: pip install 'dynamicgate[hf]'") from error

from dynamicgate.hf import adapters as _adapters
from dynamicgate.hf import saving as _saving
from dynamicgate.lazy_names import lazy_names

if TYPE_CHECKING:
    from dynamicgate.hf.adapters import train_gates_
    from dynamicgate.hf.conversion import ConversionPlan, convert_
    from dynamicgate.hf.distillation import kl_divergence
    from dynamicgate.hf.initial_gates import init_gates_
    from dynamicgate.hf.language import LanguageMeasurement, measure
    from dynamicgate.hf.model_card import card
    from dynamicgate.hf.ordering import order_
    from dynamicgate.hf.saving import load
    from dynamicgate.hf.trainer import GateCallback, GatedTrainer, GatedTrainerMixin

del _transformers, _adapters, _saving

_HOME = {
    "ConversionPlan": "conversion",
    "GateCallback": "trainer",
    "GatedTrainer": "trainer",
    "GatedTrainerMixin": "trainer",
    "LanguageMeasurement": "language",
    "card": "model_card",
    "convert_": "conversion",
    "init_gates_": "initial_gates",
    "kl_divergence": "distillation",
    "load": "saving",
    "measure": "language",
    "order_": "ordering",
    "train_gates_": "adapters",
}
__all__ = [
    "ConversionPlan",
    "GateCallback",
    "GatedTrainer",
    "GatedTrainerMixin",
    "LanguageMeasurement",
    "card",
    "convert_",
    "init_gates_",
    "kl_divergence",
    "load",
    "measure",
    "order_",
    "train_gates_",
]
__getattr__ = lazy_names(__name__, _HOME)  # the Trainer takes seconds to import
