"""E2, E3, E4 and E7: contexts of permuted images, each with blocks of its own that are kept.

Without reuse the blocks of one context read nothing of others and are never changed again, so all contexts can be
trained side by side (`Stack`) and end as they would one after the other; a test compares that with `follow`. What
depends on the order is which prototypes are known when, and that is measured in order.
"""

from __future__ import annotations

import time
from typing import Any, cast

import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.continual import Contexts
from dynamicgate.continual.retention import Retention
from dynamicgate.continual.streams import Stream, permuted
from dynamicgate.distributed import choose_device
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.streams import scaled
from dynamicgate.lab.runner import Job
from experiments.continual import joint
from experiments.continual.images import Images, images_of
from experiments.continual.noticing import Seen, notice, order_of
from experiments.continual.stack import FROM_DENSE, Recipe, Stack, cosine

WHOLE = 100  # tasks up to which every task is tested after every task


def stream_of(splits: Splits, tasks: int, seed: int, known: Any = "boundaries") -> Stream:
    """The stream that `images_of` reads."""
    return permuted(scaled(splits), tasks, seed=seed, known=known)


def train(job: Job, splits: Splits) -> dict[str, Any]:
    """Train the contexts of a stream, then test every task after every task; or all tasks at once, to compare."""
    if job.settings.get("method") == "joint":
        return joint.train(job, splits)
    asked, device = job.settings, choose_device(job.device)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(job.seed)  # dropout
    started = time.monotonic()
    tasks = asked["tasks"]
    images = images_of(splits, tasks, job.seed, device)
    seen = notice(images, asked, job.seed) if asked.get("known") == "nothing" else told(images, asked, job.seed)
    stacks = learn(images, seen, asked, job.seed)
    nets = join(stacks)
    trained = time.monotonic() - started
    prototypes = mean_rows(images, seen)
    kept = asked.get("capacity") or len(prototypes)
    retention = test(images, seen, nets, prototypes, kept)
    macs = costs(nets, min(kept, len(prototypes)), asked, images)
    found: dict[str, Any] = {
        "retention": retention.to_dict() if tasks <= WHOLE else None,
        "by_age": [round(value, 5) for value in retention.by_age()],
        "learned": [round(value, 5) for value in retention.matrix.diagonal().tolist()],
        "acc": retention.acc, "bwt": retention.bwt, "forgetting": retention.forgetting if tasks <= WHOLE else None,
        "contexts": len(prototypes),
    }  # fmt: skip
    if asked.get("projections"):
        found["routers"] = {
            str(n): projected(images, seen, nets, prototypes, n, job.seed) for n in asked["projections"]
        }
    if asked.get("assemble"):
        found["assembled"] = assemble(images, nets, prototypes)
    return {
        "model": job.model, "seed": job.seed, "settings": asked, "quality": {"accuracy": retention.acc, **found},
        "macs": macs, "seconds": round(time.monotonic() - started, 1), "train_seconds": round(trained, 1),
        "params": int(nets.nonzero[-kept:].sum()), "bytes": int(4 * min(kept, len(prototypes)) * images.train.shape[1]),
    }  # fmt: skip


def told(images: Images, asked: dict[str, Any], seed: int) -> Seen:
    """Boundaries are known: one context for each task."""
    index = [order_of(images, asked, seed, task) for task in range(asked["tasks"])]
    return Seen(torch.arange(asked["tasks"], device=images.train.device), index)


def learn(images: Images, seen: Seen, asked: dict[str, Any], seed: int) -> list[Stack]:
    """Train the network of each context, as many at once as asked."""
    made = []
    for first in range(0, len(seen.tasks), asked["at_once"]):
        part = slice(first, first + asked["at_once"])
        sizes = (images.train.shape[1], asked["width"], int(images.train_y.max()) + 1)
        stack = Stack.draw(len(seen.positions[part]), sizes, seed=7919 * seed + first, device=images.train.device)
        stack.biases[-1].zero_()  # the output bias is part of every context's answers: nobody may move it
        if asked.get("density") and not asked.get("rewire", True):
            stack.sparsify_(0, asked["density"], seed=seed + first)
        learn_stack(stack, images, Seen(seen.tasks[part], seen.positions[part]), asked)
        stack.moments = []
        made.append(stack)
    return made


def learn_stack(stack: Stack, images: Images, seen: Seen, asked: dict[str, Any]) -> None:
    """All steps of a few contexts, side by side. A context that has seen fewer batches than others stops earlier."""
    counts = [len(index) for index in seen.positions]
    lengths, shortest, longest = torch.tensor(counts, device=stack.device), min(counts), max(counts)
    recipe = Recipe(*(asked.get(name, 0.0) for name in ("smoothing", "drop", "drop_inputs")))
    padded = torch.stack([torch.cat([i, i[-1:].expand(longest - len(i), -1)]) for i in seen.positions])
    total = asked.get("horizon") or longest
    density = asked.get("density") if asked.get("rewire", True) else None
    done = density is None
    for step in range(longest):
        now = min(step / total, 0.98)
        rows = padded[:, step]
        grads, _ = stack.gradients(images.rows(seen.tasks, rows), images.train_y[rows], recipe)
        grads[-1].zero_()
        ends = not done and now >= FROM_DENSE.pruning[1]
        if ends or (not done and step and step % 100 == 0 and now < FROM_DENSE.until):
            fraction = FROM_DENSE.fraction_at(now, starts_denser=True)
            reached = FROM_DENSE.density_at(now, initial=1.0, final=float(asked["density"]))
            stack.exchange_(0, grads[0].abs(), fraction, reached)
            done = ends
        rate = cosine(asked["lr"], now)
        stack.adam_(grads, rate if step < shortest else rate * (step < lengths).float(), asked.get("decay", 0.0))


def join(stacks: list[Stack]) -> Stack:
    """All networks in one stack."""
    parts = [list(zip(*(getattr(s, name) for s in stacks), strict=True)) for name in ("weights", "biases", "masks")]
    weights, biases = ([torch.cat(layer) for layer in part] for part in parts[:2])
    return Stack(weights, biases, [None if m[0] is None else torch.cat(m) for m in parts[2]])


def mean_rows(images: Images, seen: Seen) -> Tensor:
    """The prototype of each context."""
    counts = [torch.bincount(index.flatten(), minlength=len(images.train)).float() for index in seen.positions]
    pixels = torch.stack([count @ images.train / count.sum() for count in counts])
    return pixels.gather(1, images.orders[seen.tasks])


def closeness(x_BD: Tensor, prototypes_CD: Tensor) -> Tensor:
    """Higher for prototypes that are nearer, [B, C]: one product for each."""
    x, prototypes = x_BD.double(), prototypes_CD.double()  # a GPU rounds products of floats to 10 bits
    return x @ prototypes.T - 0.5 * prototypes.square().sum(1)


def test(images: Images, seen: Seen, nets: Stack, prototypes_CD: Tensor, capacity: int) -> Retention:
    """R[i, j]: after the contexts of tasks 0 to i are known, of which the oldest beyond `capacity` are released."""
    tasks, last_of = len(images.orders), {int(t): c for c, t in enumerate(seen.tasks.tolist())}
    retention = Retention.empty(tasks)
    known_until = [last_of[0]]  # contexts known after each task; one in which nothing new was noticed adds none
    for task in range(1, tasks):
        known_until.append(last_of.get(task, known_until[-1]))
    for j in range(tasks):
        x = images.test[:, images.orders[j]]
        close_BC = closeness(x, prototypes_CD)
        answered = Answers(nets, x, images.test_y)
        rows = range(j, tasks) if tasks <= WHOLE else sorted({j, tasks - 1})
        for i in rows:
            end = known_until[i] + 1
            first = max(0, end - capacity)
            retention.matrix[i, j] = answered.accuracy(close_BC[:, first:end].argmax(1) + first)
    return retention


class Answers:
    """What contexts answer on test rows; each is asked once."""

    def __init__(self, nets: Stack, x_BD: Tensor, y_B: Tensor) -> None:
        """For the rows of a task."""
        self.nets, self.x, self.y = nets, x_BD, y_B
        self.right_B: dict[int, Tensor] = {}

    def accuracy(self, chosen_B: Tensor) -> float:
        """The fraction of right answers where each row is answered by the context that is chosen for it."""
        right = torch.zeros((), device=self.x.device)
        for c in chosen_B.unique().tolist():
            if c not in self.right_B:
                one = self.nets.some(torch.tensor([c], device=self.x.device))
                self.right_B[c] = one.forward(self.x[None])[0].argmax(1) == self.y
            right += (self.right_B[c] & (chosen_B == c)).sum()
        return float(right) / len(self.x)


def projected(
    images: Images, seen: Seen, nets: Stack, prototypes_CD: Tensor, directions: int, seed: int
) -> dict[str, float]:
    """The same contexts, named by prototypes in a few random directions: a row is projected once, and every further
    context costs one product with so few numbers. The mean of projections is the projection of the mean."""
    draw = torch.Generator().manual_seed(seed)
    features = prototypes_CD.shape[1]
    way_DP = (torch.randn(features, directions, generator=draw) / directions**0.5).to(prototypes_CD)
    right, named = 0.0, 0.0
    last = {int(t): c for c, t in enumerate(seen.tasks.tolist())}
    for j, order in enumerate(images.orders):
        x = images.test[:, order]
        chosen_B = closeness(x @ way_DP, prototypes_CD @ way_DP).argmax(1)
        right += Answers(nets, x, images.test_y).accuracy(chosen_B)
        named += float((chosen_B == last.get(j, -1)).float().mean())
    tasks = len(images.orders)
    return {"acc": right / tasks, "named": named / tasks, "gate": float(directions * (features + len(prototypes_CD)))}


def costs(nets: Stack, known: int, asked: dict[str, Any], images: Images) -> dict[str, float]:
    """MACs of a row: the blocks of one context and a product with every prototype. Relative to the body that has all
    contexts, and to the dense network 784-2048-2048-10 that others use."""
    own = float((nets.nonzero - sum(b[0].numel() for b in nets.biases)).float().mean())
    features, classes = images.train.shape[1], nets.biases[-1].shape[1]
    body = asked["width"] * len(nets.biases[0]) * (features + classes)
    usual = features * 2048 + 2048 * 2048 + 2048 * classes
    executed = own + known * features
    return {"executed": executed, "gate": float(known * features), "dense": float(body),
            "relative": executed / body, "relative_to_usual": executed / usual}  # fmt: skip


def assemble(images: Images, nets: Stack, prototypes_CD: Tensor) -> dict[str, float]:
    """The same contexts as one model of the library, saved and measured as any other: nothing may differ."""
    count, width = len(prototypes_CD), nets.biases[0].shape[1]
    features, classes = images.train.shape[1], nets.biases[1].shape[1]
    config = dg.GateConfig(kind="context", block=width, contexts=count)
    with torch.device(images.train.device):
        model = dg.nn.GatedMLP((features, count * width, classes), config)
    contexts = Contexts(model)
    for number, prototype in enumerate(prototypes_CD):
        contexts.open_()
        contexts.first.learn_(number, prototype[None])
        contexts.close_()
    first, last = (cast(nn.Linear, layer) for layer in model.layers)
    with torch.no_grad():
        first.weight.copy_(nets.weights[0].transpose(1, 2).reshape(count * width, features))
        first.bias.copy_(nets.biases[0].flatten())
        last.weight.copy_(nets.weights[1].permute(2, 0, 1).reshape(classes, count * width))
        last.bias.zero_()
    model.eval()
    right, apart = 0, 0.0
    device = images.test.device
    for number in range(min(count, 10)):
        x = images.test[:, images.orders[number]]
        with torch.no_grad():
            body = model(x)
            one = nets.some(torch.tensor([number], device=device)).forward(x[None])[0]
        right += int((body.argmax(1) == images.test_y).sum())
        apart = max(apart, float((body - one).abs().max()))
    macs = dg.count_macs(model, images.test[:2])
    with torch.no_grad(), dg.usage(model) as used:
        model(images.test[:, images.orders[0]][:500])
    opened = float(used["layers.1"].open.sum(1).mean())
    rows = min(count, 10) * len(images.test)
    return {"accuracy": right / rows, "apart": apart, "open_blocks": opened, "gate": macs.gate}
