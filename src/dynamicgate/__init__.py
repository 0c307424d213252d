"""DynamicGate: conditional computation that pays.

Gates that learn which units to run for which input, a budget that is met, and a report that the clock agrees with.

>>> import dynamicgate as dg
>>> dg.gate_(model, dg.GateConfig(block=16))        # in place; base parameter names stay
>>> history = dg.fit(model, train, budget=dg.Budget(target=0.3))
>>> print(dg.measure(model, test))
>>> fast = dg.compile(model, example=x)              # checked, the fastest form of each layer

Names are imported when they are first used, so that parts that need no torch (reports) load without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dynamicgate._version import __version__ as __version__

if TYPE_CHECKING:
    from dynamicgate import nn, sparsity
    from dynamicgate import schedule as schedule
    from dynamicgate.accounting import count_macs, measure
    from dynamicgate.budget import Budget, calibrate_
    from dynamicgate.continual import follow
    from dynamicgate.gating import GateConfig, Site, find_sites, gate_, named_gates, ungate_, usage, where
    from dynamicgate.inference import compile
    from dynamicgate.io import load, save
    from dynamicgate.presets import sparsify_
    from dynamicgate.sparsity import RigL
    from dynamicgate.training import fit

__all__ = [
    "Budget",
    "GateConfig",
    "RigL",
    "Site",
    "calibrate_",
    "compile",
    "count_macs",
    "find_sites",
    "fit",
    "follow",
    "gate_",
    "load",
    "measure",
    "named_gates",
    "nn",
    "save",
    "sparsify_",
    "sparsity",
    "ungate_",
    "usage",
    "where",
]

_HOME = {
    "accounting": ("count_macs", "measure"),
    "budget": ("Budget", "calibrate_"),
    "continual": ("follow",),
    "gating": ("GateConfig", "Site", "find_sites", "gate_", "named_gates", "ungate_", "usage"),
    "gating.where": ("where",),
    "inference": ("compile",),
    "io": ("load", "save"),
    "presets": ("sparsify_",),
    "sparsity": ("RigL",),
    "training": ("fit",),
}
_MODULES = (
    "accounting",
    "budget",
    "continual",
    "data",
    "export",
    "gating",
    "inference",
    "io",
    "nn",
    "omics",
    "schedule",
    "sparsity",
    "training",
)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"dynamicgate.{name}")
    for home, names in _HOME.items():
        if name in names:
            module = import_module(f"dynamicgate.{home}")
            found = module if home.endswith(f".{name}") else getattr(module, name)
            globals()[name] = found  # asked for once
            return found
    raise AttributeError(f"module 'dynamicgate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
