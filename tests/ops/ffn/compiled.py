"""Kernels that are compiled for Hopper instead of being launched, where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

HOPPER = 90
SHARED = 232_448  # bytes of shared memory that a program may have there
HOPPER_OPTIONS = {"DEPENDENT": True, "RELEASE_NEXT": True, "PHASE": 0}
POINTERS = {"torch.bfloat16": "*bf16", "torch.float16": "*fp16", "torch.float32": "*fp32", "torch.int32": "*i32"}


class Compiled:
    """Stands in for a Triton kernel: `kernel[grid](*arguments)` compiles it for Hopper and stops there."""

    compiled: ClassVar[set[str]] = set()  # names of all kernels that were compiled

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """What a launch on this grid calls."""
        return self.launch

    def launch(self, *arguments: Any, **named: Any) -> None:
        """Compile as for a Hopper GPU: with barriers, and as a dependent launch."""
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource, compile

        options = {name: named.pop(name) for name in ("num_warps", "maxnreg") if name in named}
        parameters = self.kernel.params
        given = dict(zip((p.name for p in parameters), arguments, strict=False)) | named
        given |= {name: value for name, value in HOPPER_OPTIONS.items() if name in given}
        given |= {p.name: p.default for p in parameters if p.name not in given}
        constants = {p.name: given[p.name] for p in parameters if p.is_constexpr or given[p.name] is None}
        values = {name: value for name, value in given.items() if name not in constants}
        signature = {p.name: "constexpr" if p.name in constants else _kind(given.pop(p.name)) for p in parameters}
        if given.keys() != constants.keys():
            raise TypeError(f"{self.kernel.__name__} has no {sorted(given.keys() - constants.keys())}")
        aligned = {(i,): [["tt.divisibility", 16]] for i, p in enumerate(parameters) if _aligned(values.get(p.name))}
        made = compile(ASTSource(self.kernel, signature, constants, aligned), GPUTarget("cuda", HOPPER, 32), options)
        if made.metadata.shared > SHARED:
            raise ValueError(f"{self.kernel.__name__} takes {made.metadata.shared} bytes of shared memory: {options}")
        self.compiled.add(self.kernel.__name__)


def _aligned(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0)


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return POINTERS[str(value.dtype)]
    if hasattr(value, "block_shape"):  # a descriptor of a matrix for the copy engine
        return f"tensordesc<{POINTERS[str(value.base.dtype)][1:]}{value.block_shape}>"
    return "fp32" if isinstance(value, float) else "i32"
