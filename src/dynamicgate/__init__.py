"""DynamicGate: conditional computation that pays.

Gates that learn which units to run for which input, a budget that is met, and a report that the clock agrees with.

>>> import dynamicgate as dg
>>> dg.gate_(model, dg.GateConfig(block=16))        # in place; base parameter names stay
>>> history = dg.fit(model, train, budget=dg.Budget(target=0.3))
>>> print(dg.measure(model, test))
>>> fast = dg.compile(model, example=x)              # checked, timed, never slower than dense
"""

from dynamicgate import nn, schedule
from dynamicgate._version import __version__
from dynamicgate.budget import Budget, Collapse, diagnose
from dynamicgate.convert import everywhere, gate_, hidden, inputs, ungate_
from dynamicgate.cost import Ledger
from dynamicgate.fit import History, fit
from dynamicgate.gate import Decision, Gate, GateConfig
from dynamicgate.measure import Measurement, measure
from dynamicgate.nn import FFN, GatedMLP, Normalize, Switch, SwitchMLP
from dynamicgate.plan import Fast, Plan, compile
from dynamicgate.recipe import recipe_
from dynamicgate.rewire import SET, Magnitude, Rewirer, RigL, Static
from dynamicgate.routing import Routing, routing
from dynamicgate.save import load, save
from dynamicgate.site import Site, find_sites
from dynamicgate.trace import trace
from dynamicgate.usage import Usage, gates_of, usage

__all__ = [
    "FFN",
    "SET",
    "Budget",
    "Collapse",
    "Decision",
    "Fast",
    "Gate",
    "GateConfig",
    "GatedMLP",
    "History",
    "Ledger",
    "Magnitude",
    "Measurement",
    "Normalize",
    "Plan",
    "Rewirer",
    "RigL",
    "Routing",
    "Site",
    "Static",
    "Switch",
    "SwitchMLP",
    "Usage",
    "__version__",
    "compile",
    "diagnose",
    "everywhere",
    "find_sites",
    "fit",
    "gate_",
    "gates_of",
    "hidden",
    "inputs",
    "load",
    "measure",
    "nn",
    "recipe_",
    "routing",
    "save",
    "schedule",
    "trace",
    "ungate_",
    "usage",
]
