"""Gates stay in front of a layer when an adapter such as LoRA wraps it.

A wrapper gives its input to the layer and to branches of its own, and all of them must see gated units. So the hooks of
gates sit on the outermost wrapper. PyTorch tells when a module becomes the child of another one; importing this module
asks it to, and from then on the hooks move to a wrapper when it takes a layer in, and back when it is taken off.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from dynamicgate.gating.gate import Gate
from dynamicgate.linears import WRAPPED


def _follow(parent: nn.Module, name: str, module: nn.Module | None) -> None:
    """Called by PyTorch before `module` becomes the child `name` of `parent`."""
    if module is None:
        return
    if name == WRAPPED:
        _move_hooks(module, parent)
    replaced = parent._modules.get(name)
    if replaced is not None and _wraps(replaced, module):
        _move_hooks(replaced, module)


def _wraps(wrapper: nn.Module, layer: nn.Module) -> bool:
    inner = getattr(wrapper, WRAPPED, None)
    return isinstance(inner, nn.Module) and (inner is layer or _wraps(inner, layer))


def gate_hooks(module: nn.Module) -> dict[int, Any]:
    """The forward pre-hooks of gates on a module, in the order in which they run."""
    hooks = module._forward_pre_hooks.items()
    return {key: hook for key, hook in hooks if isinstance(getattr(hook, "__self__", None), Gate)}


def _move_hooks(old: nn.Module, new: nn.Module) -> None:
    hooks = gate_hooks(old)
    for key in hooks:
        del old._forward_pre_hooks[key]
    for hook in reversed(hooks.values()):
        hook.__self__.put_hook_(new, hook, prepend=True)


register_module_module_registration_hook(_follow)
