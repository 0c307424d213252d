"""A compiled model: an `nn.Module` of buffers that runs rows of any number, from any thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from dynamicgate.gating.recording import named_gates
from dynamicgate.inference.cpu.candidates import below
from dynamicgate.inference.cpu.chain import Chain
from dynamicgate.inference.cpu.find import trace
from dynamicgate.inference.plan import Plan
from dynamicgate.inference.shadow_copy import detach_from_, sharing
from dynamicgate.io.model_file import read_tensors, restore, write_tensors

KIND = "plan"


class CompiledModel(nn.Module):
    """What `compile` returns: the hard model's outputs, by the fastest way that was found. Inference only.

    `plan` says how it runs. Batch size and leading dimensions may vary from call to call.
    """

    def __init__(self, body: nn.Module, plan: Plan, nodes: Sequence[Sequence[str]] | None) -> None:
        """`body` is a chain, or a traced model in which `nodes` were replaced by chains, or a model as it was; without
        `nodes`, something that no file can hold."""
        super().__init__()
        self.body = body.eval()
        self.plan = plan
        self.nodes = None if nodes is None else [list(names) for names in nodes]
        # Chains write nothing in a call; a gate that is left in torch keeps its decision until its reader runs.
        self._turns = _OneAtATime() if named_gates(body) else None
        self._run = self.body.forward if isinstance(body, Chain) else self.body

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for `x`."""
        if self._turns is None or torch.compiler.is_compiling():
            return self._run(x)
        with self._turns.take():
            return self._run(x)

    def extra_repr(self) -> str:
        """Shown by print."""
        return f"{len(self.plan.chains)} chains, {self.plan.backend}"

    def save(self, path: str | Path) -> None:
        """Write everything to one safetensors file, atomically. A plan on a GPU holds compiled and recorded work, and
        is made again where it is to run: save the model."""
        if self.nodes is None:
            raise ValueError(
                "a plan on a GPU cannot be saved: save the model with dynamicgate.save, and compile it where it runs"
            )
        whole = isinstance(self.body, Chain)
        chains = [self.body] if whole else [self.body.get_submodule(f"chain_{i}") for i in range(len(self.nodes))]
        header = {
            "kind": KIND,
            "plan": self.plan.to_dict(),
            "nodes": self.nodes,
            "whole": whole,
            "chains": [chain.describe() for chain in chains],  # type: ignore[operator]
        }
        write_tensors(Path(path), self.body.state_dict(), header)

    @staticmethod
    def load(path: str | Path, *, into: nn.Module | None = None) -> CompiledModel:
        """Read back what `save` wrote, bit for bit. Where part of the model stayed in torch, `into` is an instance of
        the model, gates on it, which gives the structure of that part; it is not changed."""
        path = Path(path)
        tensors, header = read_tensors(path, kind=KIND)
        plan = Plan.from_dict(header["plan"])
        if header["whole"]:
            return CompiledModel(Chain.built(header["chains"][0], tensors), plan, header["nodes"])
        if into is None:
            raise ValueError(
                f"part of the model in {path} runs in torch: pass an instance with CompiledModel.load(path, into=model)"
            )
        chains = [Chain.built(c, below(tensors, f"chain_{i}")) for i, c in enumerate(header["chains"])]
        hard = sharing(into)
        body = assemble(hard, trace(hard), header["nodes"], chains) if chains else hard
        detach_from_(body, into)
        restore(body, tensors, path)
        return CompiledModel(body, plan, header["nodes"])


def assemble(
    model: nn.Module, graph: fx.Graph, nodes: Sequence[Sequence[str]], chains: Sequence[nn.Module]
) -> nn.Module:
    """`model` with every run of `nodes` replaced by a chain; the chain itself where nothing else is left."""
    by_name = {node.name: node for node in graph.nodes}
    unknown = [name for names in nodes for name in names if name not in by_name]
    if unknown:
        raise ValueError(f"the plan was made for another model: this one has no {', '.join(map(repr, unknown[:3]))}")
    for i, (names, chain) in enumerate(zip(nodes, chains, strict=True)):
        first, last = by_name[names[0]], by_name[names[-1]]
        model.add_module(f"chain_{i}", chain)
        with graph.inserting_before(first):
            call = graph.create_node("call_module", f"chain_{i}", (first.all_input_nodes[0],))
        last.replace_all_uses_with(call)
        for name in reversed(names):
            graph.erase_node(by_name[name])
    if [node.op for node in graph.nodes] == ["placeholder", "call_module", "output"] and len(chains) == 1:
        return chains[0]
    return fx.GraphModule(model, graph, "Compiled")


class _OneAtATime:
    """A lock that a copy of the module does not share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def take(self) -> Iterator[None]:
        with self._lock:
            yield

    def __deepcopy__(self, memo: dict[int, Any]) -> _OneAtATime:
        return _OneAtATime()
