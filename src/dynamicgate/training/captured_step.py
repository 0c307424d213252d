"""A training step as two CUDA graphs: a GPU that waits for Python is given a whole pass at once.

Between the two a budget reads what the gates decided and says what to add to the loss, as in any other step, so that
nothing about the step is different but who launches its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dynamicgate.budget.gate_gradients import BY_BUDGET
from dynamicgate.gating.gate import Decision
from dynamicgate.gating.recording import Usage, named_gates, usage_of_all_rows
from dynamicgate.nn import FFN

EAGER_STEPS = 3  # to take before: kernels are compiled in them, and the state of the optimizer is made


class CapturedStep:
    """Forward pass and loss; then backward pass, clipping and the optimizer's step, for inputs of one shape without
    padding.

        step = CapturedStep(model, loss, (ids, targets), optimizer, clip=1.0)
        for ids, targets in batches:
            budget.apply_(model, progress)
            value, used = step.forward(ids, targets)
            step.backward(budget.step(used, progress), rates=[lr])

    Parameters, buffers and optimizer state may be changed in place between steps, but not replaced. The optimizer must
    have taken a step before, so that its state exists, and be one that can be captured, as Adam and AdamW are. Let go
    of the loss of that step first: a graph that is alive ties its parameters to the stream it ran on.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor],
        inputs: Sequence[Tensor],
        optimizer: torch.optim.Optimizer,
        *,
        clip: float | None = None,
    ) -> None:
        """`loss` is called with inputs like these and returns a scalar. Nothing is trained yet."""
        if any(isinstance(m, FFN) and m.gate_gradient in BY_BUDGET for m in model.modules()):
            raise ValueError(
                "a captured step keeps the gate gradient that it is captured with: expected layers with "
                "gate_gradient='dense' or 'sparse', received 'sampled' or 'auto'"
            )
        self.gates, self.inputs = named_gates(model), [_kept(x) for x in inputs]
        device = self.inputs[0].device
        optimizer.zero_grad()
        self._forward = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._forward), usage_of_all_rows(model) as used:
            self._loss = loss(*self.inputs)
        self._used: dict[str, Decision] = dict(used)
        sources = [t for one in self._used.values() for t in (one.p, one.logits) if t.requires_grad]
        self._slopes = {id(t): torch.zeros_like(t) for t in sources}  # of the penalty, by what gates decided
        self._rates = [torch.zeros((), device=device) for _ in optimizer.param_groups]
        for parameter, state in optimizer.state.items():  # plain Adam counts its steps on the CPU
            state["step"] = state["step"].to(parameter.device)
        given = [(group["lr"], group["capturable"]) for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"], group["capturable"] = rate, True
        self._backward = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._backward, pool=self._forward.pool()):
            slopes = [torch.ones_like(self._loss), *self._slopes.values()]
            torch.autograd.backward([self._loss, *sources], slopes)
            clip_and_step(optimizer, clip)
            for slope in self._slopes.values():
                slope.zero_()
        for group, (lr, capturable) in zip(optimizer.param_groups, given, strict=True):
            group["lr"], group["capturable"] = lr, capturable

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Usage]:
        """The loss of this batch and what the gates decided. Both are overwritten by the next call."""
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)
        self._forward.replay()
        used = Usage(self.gates)
        for name, gate in self.gates.items():
            decision = self._used[name]
            used(gate, decision._replace(p=self._watched(decision.p), logits=self._watched(decision.logits)))
        return self._loss.detach(), used

    def backward(self, penalty: Tensor | None, *, rates: Sequence[float]) -> None:
        """Gradients of the loss and of `penalty`, clipped, and a step of the optimizer with a learning rate for each of
        its groups."""
        if penalty is not None and penalty.requires_grad:
            penalty.backward()
        for mine, rate in zip(self._rates, rates, strict=True):
            mine.fill_(rate)
        self._backward.replay()

    def _watched(self, value: Tensor) -> Tensor:
        """The same numbers, whose gradient goes where the captured backward pass begins."""
        if id(value) not in self._slopes:
            return value
        leaf = value.detach().requires_grad_()
        leaf.grad = self._slopes[id(value)]
        return leaf


def _kept(x: Tensor) -> Tensor:
    """A copy with the same strides: for others a compiled model would be compiled once more, inside the capture."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)


def clip_and_step(optimizer: torch.optim.Optimizer, clip: float | None) -> None:
    """A step with gradients of at most this norm. Fused optimizers divide gradients by a factor on the way, as they do
    for `torch.amp.GradScaler`, which saves a pass over all of them."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if clip is not None and all(group.get("fused") for group in optimizer.param_groups):
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        optimizer.grad_scale = ((norm + 1e-6) / clip).clamp(min=1.0)  # type: ignore[attr-defined]
        optimizer.step()
        del optimizer.grad_scale  # type: ignore[attr-defined]
        return
    if clip is not None:
        nn.utils.clip_grad_norm_(parameters, clip)
    optimizer.step()
