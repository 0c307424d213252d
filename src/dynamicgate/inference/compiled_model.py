"""A compiled model: an `nn.Module` of buffers that runs any number of rows, from any thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module

from dynamicgate.accounting.counted import DenseLayer, LayerWork
from dynamicgate.data.schema import put_schema_, schema_of
from dynamicgate.inference.cpu.chain import Chain
from dynamicgate.inference.cpu.row_macs import chain_work
from dynamicgate.inference.gates import without_prefix
from dynamicgate.inference.graph import replace_nodes, trace
from dynamicgate.inference.language.plan import LanguagePlan
from dynamicgate.inference.language.saving import body_from, tensors_of
from dynamicgate.inference.no_gradient import without_gradient
from dynamicgate.inference.plan import Plan
from dynamicgate.inference.shadow_copy import copy_sharing_memory, stop_sharing_
from dynamicgate.io.model_file import schema_of_header
from dynamicgate.io.tensor_file import naming_damage, read_tensors, restore, write_tensors

KIND = "compiled model"
STAGE = ", stage "  # in a plan, between the name of a layer and the number of the stage
GLOBAL_HOOKS = (  # of all modules
    module._global_forward_hooks,
    module._global_forward_pre_hooks,
    module._global_backward_hooks,
    module._global_backward_pre_hooks,
)


class CompiledModel(nn.Module):
    """What `compile` returns: the model's outputs in evaluation mode, computed the fastest way that was found.

    For inference only. `plan` says how it runs. Batch size and leading dimensions may vary from call to call.
    """

    def __init__(
        self,
        body: nn.Module,
        plan: Plan | LanguagePlan,
        nodes: Sequence[Sequence[str]] | None = None,
        described: Mapping[str, Any] | None = None,
    ) -> None:
        """`body` is a chain, or a traced model in which `nodes` were replaced by chains, or a model as it was.

        nodes: for each chain the names of the nodes it replaced; None on a GPU, whose plans cannot be saved.
        described: of a language model, what a file needs besides tensors.
        """
        super().__init__()
        self.body = body.eval()
        self.plan = plan
        self.described = described
        self.nodes = None if nodes is None else [list(names) for names in nodes]
        self._run = self.body.forward if isinstance(body, Chain) else self.body
        self._hooks = (
            self._forward_hooks,
            self._forward_pre_hooks,
            self._backward_hooks,
            self._backward_pre_hooks,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs of the model for these arguments. Without the call of a module where no hook waits for it, which
        takes a fifth of the time of a small network at batch 1."""
        if kwargs or len(args) != 1 or not isinstance(args[0], Tensor):
            return super().__call__(*args, **kwargs)
        x = args[0]
        if x.requires_grad or forward_ad._current_level >= 0:
            x = without_gradient(x)
        if not any(self._hooks) and not any(GLOBAL_HOOKS):
            return self._run(x)
        return super().__call__(x)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs of the model for these arguments."""
        return self._run(*args, **kwargs)

    def train(self, mode: bool = True) -> CompiledModel:
        """Stays in evaluation mode: what was compiled has no dropout."""
        return super().train(False)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Tokens, as the `generate` of a Hugging Face model gives them."""
        own = getattr(self.body, "generate", None)
        if own is None:
            raise ValueError("only a compiled Hugging Face model has generate: call this one with its cache")
        return own(*args, **kwargs)

    def dense_layers(self) -> list[DenseLayer]:
        """Its layers as they were in the model without gates and masks, in the order of `row_work`."""
        self._only_chain()
        assert isinstance(self.plan, Plan)
        layers = self.plan.chains[0][0].layers
        if not any(STAGE in layer.name for layer in layers):
            return [DenseLayer(layer.name, layer.shape[0] * layer.shape[1]) for layer in layers]
        shapes: dict[str, list[tuple[int, int]]] = {}  # by layer, of its part in each stage
        for layer in layers:
            shapes.setdefault(layer.name.split(STAGE)[0], []).append(layer.shape)
        *hidden, (outputs, last) = shapes.items()  # a stage reads all units before it, and adds its own to the outputs
        return [
            *(DenseLayer(name, sum(n for n, _ in parts) * max(d for _, d in parts)) for name, parts in hidden),
            DenseLayer(outputs, last[0][0] * sum(d for _, d in last)),
        ]

    def row_work(self, x: Tensor) -> list[LayerWork]:
        """By layer what each row of `x` executes; see `dynamicgate.measure`."""
        return chain_work(self._only_chain(), x)

    def _only_chain(self) -> Chain:
        if not isinstance(self.body, Chain):
            raise ValueError(
                "this compiled model cannot say what its rows execute, because a part of it runs in torch or on a GPU: "
                "measure the model that it was made from"
            )
        return self.body

    def extra_repr(self) -> str:
        """Shown by print."""
        way = self.plan.chosen if isinstance(self.plan, LanguagePlan) else f"{len(self.plan.chains)} chains"
        return f"{way}, {self.plan.backend}"

    def save(self, path: str | Path) -> None:
        """Write everything to one safetensors file, atomically, with the schema that it carries. Not on a GPU: a plan
        there holds compiled kernels and CUDA graphs, and has to be made again where it is to run. Save the model
        instead."""
        schema = schema_of(self)
        known: dict[str, Any] = {} if schema is None else {"schema": schema.to_json()}
        if self.described is not None:
            header = {"kind": KIND, "plan": self.plan.to_dict(), "language": self.described, **known}
            return write_tensors(Path(path), tensors_of(self.body, self.described), header)
        if self.nodes is None:
            raise ValueError(
                "a plan on a GPU cannot be saved: save the model with dynamicgate.save, and compile it where it runs"
            )
        single = isinstance(self.body, Chain)
        chains = [self.body] if single else [self.body.get_submodule(f"chain_{i}") for i in range(len(self.nodes))]
        header = {
            "kind": KIND,
            "plan": self.plan.to_dict(),
            "nodes": self.nodes,
            "single_chain": single,
            "chains": [chain.describe() for chain in chains],  # type: ignore[operator]
            **known,
        }
        return write_tensors(Path(path), self.body.state_dict(), header)

    @staticmethod
    def load(path: str | Path, *, into: nn.Module | None = None) -> CompiledModel:
        """Read what `save` wrote, bit for bit.

        into: an instance of the model with its gates, needed where a part of the model stayed in torch: the file does
        not hold the structure of that part. It is not changed.
        """
        path = Path(path)
        tensors, header = read_tensors(path, kind=KIND)
        with naming_damage(path):
            found = _from_file(tensors, header, path, into)
            put_schema_(found, schema_of_header(header, path))
            return found


def _from_file(
    tensors: Mapping[str, Tensor], header: Mapping[str, Any], path: Path, into: nn.Module | None
) -> CompiledModel:
    if "language" in header:
        described = header["language"]
        body = body_from(described, tensors, path, into)
        return CompiledModel(body, LanguagePlan.from_dict(header["plan"]), described=described)
    plan = Plan.from_dict(header["plan"])
    if header["single_chain"]:
        chain = Chain.from_description(header["chains"][0], tensors)
        restore(chain, tensors, path)
        return CompiledModel(chain, plan, header["nodes"])
    if into is None:
        raise ValueError(
            f"part of the model in {path} runs in torch: pass an instance with CompiledModel.load(path, into=model)"
        )
    chains = [
        Chain.from_description(described, without_prefix(tensors, f"chain_{i}"))
        for i, described in enumerate(header["chains"])
    ]
    body = copy_sharing_memory(into)
    if chains:
        body = replace_nodes(body, trace(body), header["nodes"], chains)
    stop_sharing_(body, into)
    restore(body, tensors, path)
    return CompiledModel(body, plan, header["nodes"])
