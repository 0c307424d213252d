"""The hyperparameters as groups of command-line options: `--help` shows one box for each."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import MISSING, Field, fields, make_dataclass
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from tyro.conf import arg

from dynamicgate.lab.methods.fields import Hyperparameters


class Group(NamedTuple):
    """Fields of `Hyperparameters` that are shown together."""

    about: str
    names: tuple[str, ...]


GROUPS = {
    "optimisation": Group(
        "How the weights are trained.",
        (
            *("epochs", "batch", "lr", "weight_decay", "dropout", "dense_dropout", "activation", "loss", "accumulate"),
            *("clip", "bf16", "balanced", "distill_weight", "patience"),
        ),
    ),
    "gates": Group(
        "Gates on units: static, random, gate, gate+rigl.",
        (
            *("block", "net", "rank", "gate_fraction", "always_open", "start_static", "fold"),
            *("order_units", "anneal", "open_rate"),
            *("policy", "tau", "theta", "scale", "soft_width", "gate_lr_scale"),
        ),
    ),
    "sparsity": Group(
        "Which connections exist: pruned, static-sparse, set, rigl, gate+rigl.",
        (
            *("density", "initial_density", "prune_until", "gate_density", "pattern", "distribution", "widen"),
            *("output", "every"),
        ),
    ),
    "stages": Group(
        "Models whose easy inputs stop early: staged, staged-random, cascade, and sparsify where that pays.",
        ("stages", "focus", "stage_distill", "first_stage_weight", "decide", "clock"),
    ),
}


@cache
def group_class(name: str) -> type:
    """A dataclass with the fields of a group, each with its type, default and help text of `Hyperparameters`."""
    types, texts = get_type_hints(Hyperparameters, include_extras=True), _texts()
    known = {field.name: field for field in fields(Hyperparameters)}
    found = make_dataclass(
        name.capitalize(),
        [(each, _option(types[each], known[each], texts[each]), known[each].default) for each in GROUPS[name].names],
        frozen=True,
        kw_only=True,
    )
    found.__doc__ = GROUPS[name].about
    return found


def _option(kind: Any, field: Field[Any], text: str) -> Any:
    """The type with its help text; "None" is no value that anyone would type, so it is not shown as one."""
    assert field.default is not MISSING
    if field.default is not None:
        return Annotated[kind, arg(help=text)]
    (given,) = (one for one in get_args(kind) if one is not type(None))
    choices = get_origin(given) is Literal
    metavar = "{" + ",".join(map(str, get_args(given))) + "}" if choices else given.__name__.upper()
    return Annotated[kind, arg(help=text, metavar=metavar, help_behavior_hint="")]


def _texts() -> dict[str, str]:
    """The text below each field of `Hyperparameters`."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(Hyperparameters))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found
