"""Gates in Hugging Face models: saving, training with `Trainer`, conversion. Needs the extra `hf`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import transformers as _transformers
except ImportError as error:
    raise ImportError("dynamicgate.hf needs Transformers: pip install 'dynamicgate[hf]'") from error

from dynamicgate.hf.adapters import train_gates_

if TYPE_CHECKING:
    from dynamicgate.hf.conversion import ConversionPlan, convert_
    from dynamicgate.hf.initial_gates import init_gates_
    from dynamicgate.hf.ordering import order_

del _transformers

_HOME = {
    "ConversionPlan": "conversion",
    "convert_": "conversion",
    "init_gates_": "initial_gates",
    "order_": "ordering",
}
__all__ = ["ConversionPlan", "convert_", "init_gates_", "order_", "train_gates_"]


def __getattr__(name: str) -> Any:
    """Imported when first used."""
    if name in _HOME:
        return getattr(import_module(f"dynamicgate.hf.{_HOME[name]}"), name)
    raise AttributeError(f"module 'dynamicgate.hf' has no attribute {name!r}")
