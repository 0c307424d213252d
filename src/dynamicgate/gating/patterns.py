"""Sites by a word: `where="mlp"` is every feed-forward layer of a model, `where="heads"` its attention heads, and
`where="mlp-inputs"` everything that the layers of its feed-forward layers read, their input and their hidden units, and
`where="mlp-all"` that and, in gated linear units, the factors.

A pattern looks at one module and says which of the layers below it play which role; all modules of a model are shown to
all patterns. It goes by the names and shapes of layers, so that no other package is imported, and works where a forward
pass cannot be traced. The patterns here know the models of Hugging Face Transformers; `register_pattern` adds others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeGuard

from torch import nn

from dynamicgate.gating import ffn_patterns, head_patterns
from dynamicgate.gating.config import GateConfig
from dynamicgate.gating.factors import factor_site
from dynamicgate.gating.roles import Roles, activation_of, layer_below
from dynamicgate.gating.sites import Site, find_sites
from dynamicgate.linears import in_features, out_features, unwrapped

Pattern = Callable[[nn.Module], Roles | None]
MLP, HEADS, MLP_INPUTS, MLP_ALL = "mlp", "heads", "mlp-inputs", "mlp-all"
DESCRIBE_IT = (
    "where=[Site(consumer=..., producers=(...), source=..., width=...)], or teach the library its pattern with "
    "dynamicgate.gating.register_pattern"
)

_PATTERNS: dict[str, dict[str, Pattern]] = {
    MLP: {
        "gated": ffn_patterns.gated,
        "fused": ffn_patterns.fused,
        "two-layer": ffn_patterns.two_layer,
        "structural": ffn_patterns.structural,
    },
    HEADS: {"separate": head_patterns.separate, "fused": head_patterns.fused},
}


def register_pattern(name: str, pattern: Pattern, where: str = MLP) -> None:
    """Let `gate_(model, where=...)` find layers that it does not know.

    >>> def adapter(module):
    ...     return Roles(producers=("squeeze",), consumer="expand") if isinstance(module, Adapter) else None
    >>> register_pattern("adapter", adapter)

    name: for messages; a pattern of the same name is replaced.
    pattern: called with each module of a model; returns the `Roles` of the layers below it, or None for a module that
        it does not know. It comes before all patterns that are there already.
    where: the word of `gate_(where=)` that it belongs to: "mlp", "heads" or one of your own.
    """
    if where in (MLP_INPUTS, MLP_ALL):
        raise ValueError(f"{where!r} is what the layers of {MLP!r} read: register the pattern for {MLP!r}")
    others = _PATTERNS.get(where, {})
    _PATTERNS[where] = {name: pattern, **{key: value for key, value in others.items() if key != name}}


def is_word(where: object) -> TypeGuard[str]:
    """Whether `where` names patterns."""
    return isinstance(where, str) and (where in _PATTERNS or where in (MLP_INPUTS, MLP_ALL))


@dataclass(frozen=True)
class Match:
    """A site that a pattern found."""

    site: Site
    around: str
    """The class of the module that the pattern was shown."""
    shape: str
    """What it looks like, in words."""


def find_matches(model: nn.Module, word: str) -> list[Match]:
    """All sites of a word, in module order; an error that says what to do if there are none."""
    found = known_matches(model, word)
    if not found:
        raise ValueError(_nothing_found(model, word))
    return found


def known_matches(model: nn.Module, word: str) -> list[Match]:
    """All sites of a word, in module order; there may be none."""
    if word in (MLP_INPUTS, MLP_ALL):
        layers = known_matches(model, MLP)
        return [read for layer in layers for read in _what_is_read(model, layer, factors=word == MLP_ALL)]
    found: dict[str, Match] = {}
    for name, module in model.named_modules():
        for pattern in _PATTERNS[word].values():
            roles = pattern(module)
            if roles is not None:
                match = _match(name, module, roles)
                found.setdefault(match.site.name, match)
                break
    return list(found.values())


def describe(matches: list[Match], config: GateConfig) -> str:
    """One line: how many sites of which shape, and how a gate divides them."""
    lines = Counter(f"{match.around}, {match.shape}, {_blocks(match.site, config)}" for match in matches)
    return "; ".join(f"{count} x {line}" for line, count in lines.items())


def _what_is_read(model: nn.Module, match: Match, *, factors: bool) -> Iterator[Match]:
    """The inputs of the layers that write hidden units, each by itself, factors if asked for, and the hidden units."""
    for layer in match.site.producers:
        width = in_features(unwrapped(model.get_submodule(layer)))
        yield Match(Site(layer, (), layer, width), match.around, f"{width} inputs of {layer.rpartition('.')[2]}")
    site = factor_site(model, match.site) if factors else None
    if site is not None:
        yield Match(site, match.around, f"{site.width} factors from {site.source.rpartition('.')[2]}")
    yield match


def _match(name: str, module: nn.Module, roles: Roles) -> Match:
    prefix = f"{name}." if name else ""
    consumer, producer = (layer_below(module, role) for role in (roles.consumer, roles.producers[0]))
    if consumer is None or producer is None:
        raise ValueError(f"a pattern says that {type(module).__name__} has layers {roles}, and it does not have them")
    producers = tuple(prefix + role for role in roles.producers)
    width = in_features(consumer)
    site = Site(prefix + roles.consumer, producers, producers[0], width, roles.head_dim, roles.heads_per_group)
    if roles.head_dim is not None:
        heads = width // roles.head_dim
        shape = f"{heads} heads of {roles.head_dim} in {heads // roles.heads_per_group} KV groups"
        return Match(site, type(module).__name__, shape)
    is_gated = len(producers) > 1 or out_features(producer) == 2 * width
    details = [activation_of(module, roles), "gated" if is_gated else None]
    listed = ", ".join(filter(None, details))
    shape = f"{in_features(producer)} -> {width}" + (f" ({listed})" if listed else "")
    return Match(site, type(module).__name__, shape)


def _blocks(site: Site, config: GateConfig) -> str:
    block = config.block or site.default_block
    blocks, rest = math.ceil(site.width / block), site.width % block
    text = f"{blocks} block{'' if blocks == 1 else 's'} each"
    return f"{text}, the last of {rest} units" if rest else text


def _nothing_found(model: nn.Module, word: str) -> str:
    kinds = {
        MLP: "feed-forward layers",
        HEADS: "attention heads",
        MLP_INPUTS: "feed-forward layers",
        MLP_ALL: "feed-forward layers",
    }
    text = f"`where` ({word}) matches nothing: no {kinds.get(word, 'layers')} of this {type(model).__name__} are known"
    if word in (MLP, MLP_INPUTS, MLP_ALL):
        shaped = [(name, ffn_patterns.could_be(module)) for name, module in model.named_modules()]
        listed = [f"{name or 'the model'}: {r.producers[0]} -> {r.consumer}" for name, r in shaped if r is not None]
        listed += [str(site) for site in find_sites(model) if not site.is_input]
        if listed:
            candidates = "\n  ".join(dict.fromkeys(listed))
            return f"{text}. Candidates:\n  {candidates}\nDescribe those you mean: {DESCRIBE_IT}"
    return f"{text}. If there are some, describe them: {DESCRIBE_IT}"
