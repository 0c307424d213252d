"""Other people's tools: loggers for `fit`, and gates in Lightning. Each needs its extra, and is imported when used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dynamicgate.integrations.lightning_callback import GateCallback
    from dynamicgate.integrations.loggers import CsvLogger, FunctionLogger, MLflowLogger, TensorBoardLogger, loggers_for

_HOME = {
    "CsvLogger": "loggers",
    "FunctionLogger": "loggers",
    "GateCallback": "lightning_callback",
    "MLflowLogger": "loggers",
    "TensorBoardLogger": "loggers",
    "loggers_for": "loggers",
}
__all__ = ["CsvLogger", "FunctionLogger", "GateCallback", "MLflowLogger", "TensorBoardLogger", "loggers_for"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"dynamicgate.integrations.{_HOME[name]}"), name)
    raise AttributeError(f"module 'dynamicgate.integrations' has no attribute {name!r}")
