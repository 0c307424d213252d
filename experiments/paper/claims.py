"""The claims of the paper, in section 5 and around it, and which of our numbers decides each."""

from __future__ import annotations

from dynamicgate.lab.report.number_format import counted, signed_points
from dynamicgate.lab.statistics import interval
from experiments.paper.evidence import Claim, Evidence, MissingRunError, Verdict, verdict
from experiments.paper.experiment import SECTIONS
from experiments.paper.forgetting import less_forgetting
from experiments.paper.overall import COMPARABLE, SIGNIFICANT, Decide, against, everywhere, not_speed


def difference(table: str, ours: str, theirs: str, e: Evidence, kind: str = "published") -> tuple[float, float, str]:
    """The difference in accuracy of two models, its p-value (1 if unknown), and both as text."""
    found = e.paired(table, kind, ours, theirs)
    p = "" if found.p is None else ", p < 0.001" if found.p < 0.0005 else f", p = {found.p:.3f}"
    text = f"{ours} − {theirs}: {signed_points(found.difference)} points ({counted(found.n, 'seed')}{p})"
    return found.difference, 1.0 if found.p is None else found.p, text


def better(table: str, ours: str, theirs: str) -> Decide:
    """One model is more accurate than another. Inconclusive where the 95 % interval has room for no difference and for
    the printed one: more seeds would be needed to tell them apart."""
    printed = SECTIONS[table].printed[ours]["accuracy"] - SECTIONS[table].printed[theirs]["accuracy"]

    def decide(e: Evidence) -> Verdict:
        gain, p, text = difference(table, ours, theirs, e)
        half = interval(e.differences(table, "published", ours, theirs)).half
        if half is not None and gain - half <= 0.0 < printed <= gain + half:
            shown = f"95 % interval {signed_points(gain - half)} to {signed_points(gain + half)}"
            return Verdict("inconclusive", f"as published {text}; {shown}, printed {signed_points(printed)}")
        return verdict(gain > 0 and p < SIGNIFICANT, f"as published {text}")

    return decide


def same_for_less(table: str, model: str = "gate") -> Decide:
    """The gated model is as accurate as the dense one and executes less."""

    def decide(e: Evidence) -> Verdict:
        loss, _, text = difference(table, model, "dense", e)
        executed, own = (e.mean(table, "published", model, key) for key in ("relative", "claimed"))
        number = f"as published {text}, at {executed:.3f} of the dense MACs executed, {own:.3f} by its own count"
        return verdict(loss >= -COMPARABLE and executed <= 0.99, number)

    return decide


SPEECH_STEPS = 3400  # of the notebook, on the whole data


def speech_for_less(e: Evidence) -> Verdict:
    """The same for Speech Commands, whose gates need more steps than a subset of the data gives them."""
    steps = e.of("speech", "published", "gate")[0]["steps"]
    if steps >= SPEECH_STEPS / 2:
        return same_for_less("speech")(e)
    executed = e.mean("speech", "published", "gate", "relative")
    return Verdict(
        "cannot be tested",
        f"on this subset training has {steps} steps instead of {SPEECH_STEPS:,}: too few for any logit to rise from a "
        f"probability of 0.70 above the last threshold of 0.74, so all gates end closed ({executed:.3f} executed)",
    )


def depends_on_the_input(table: str, model: str = "gate") -> Decide:
    """Decisions differ from input to input."""

    def decide(e: Evidence) -> Verdict:
        varying = e.mean(table, "published", model, "varying")
        ours = e.mean(table, "ours", "gate", "varying")
        number = (
            f"{varying:.1%} of the published gates ever change with the input; with a gate network, ours: {ours:.1%}"
        )
        return verdict(varying > 0.0, number)

    return decide


def hidden_stay_open(e: Evidence) -> Verdict:
    """MNIST: inputs close, units stay open."""
    inputs, units = (e.mean("mnist", "published", "gate", f"hard_open.{name}") for name in ("inputs", "units"))
    flops = e.mean("mnist", "published", "gate", "claimed") * 406_528
    number = f"as published {inputs:.3f} of the inputs and {units:.3f} of the units are open at the end"
    return verdict(inputs < units, f"{number}, {flops:,.0f} FLOPs by its own count")


def pruning_gains(e: Evidence) -> Verdict:
    """CIFAR-10: is it the pruning, or the longer training?"""
    _, _, to_dense = difference("cifar10", "pruned", "dense", e)
    gain, p, text = difference("cifar10", "pruned", "dense, 23 epochs", e)
    kept = e.mean("cifar10", "published", "pruned", "claimed")
    number = f"as published {to_dense}; with equal training {text}; {kept:.3f} of its weights are not zero at the end"
    return verdict(gain > 0.028 and p < SIGNIFICANT, number)


def gates_save(e: Evidence) -> Verdict:
    """Tiny-ImageNet: what saves the 80 %?"""
    structure, gates, own = (
        e.mean("tiny-imagenet", "published", "gate+rigl", key) for key in ("structure_saved", "gate_saved", "claimed")
    )
    number = f"as published the connections left out from the start save {structure:.3f} of the dense MACs"
    return verdict(gates > structure, f"{number}, the gates {gates:.3f} more; own count {1.0 - own:.3f}")


def as_accurate_as_experts(e: Evidence) -> Verdict:
    """MoE: as accurate as the mixture of experts."""
    gain, _, text = difference("moe", "gate", "switch top-2", e)
    _, _, to_dense = difference("moe", "gate", "dense", e)
    return verdict(gain >= -0.001, f"as published {text}; the dense control that is missing there: {to_dense}")


def cheaper_than(model: str) -> Decide:
    """MoE: executed MACs of the unit gate against another model."""

    def decide(e: Evidence) -> Verdict:
        ours, theirs = (e.mean("moe", "published", name, "relative") for name in ("gate", model))
        return verdict(ours < theirs, f"executed MACs of dense 784-512-10: gate {ours:.3f}, {model} {theirs:.3f}")

    return decide


def early_collapse(e: Evidence) -> Verdict:
    """MoE: accuracies of about 10 % in early epochs."""
    worst = min(min(run["accuracy_by_epoch"]) for run in e.of("moe", "published", "switch top-2"))
    return verdict(worst < 0.2, f"the lowest test accuracy after any epoch of any seed is {worst:.2%}")


def falls(model: str, key: str, what: str) -> Decide:
    """MoE: a quantity of the training that falls from the second epoch to the last."""

    def decide(e: Evidence) -> Verdict:
        runs = e.of("moe", "published", model)
        if min(len(run[key]) for run in runs) < 3:
            raise MissingRunError(f"{key} after the second epoch")  # a quick run has one epoch
        first, last = (sum(run[key][at] for run in runs) / len(runs) for at in (1, -1))
        return verdict(last < first, f"{what}: {first:.4g} in the second epoch, {last:.4g} in the last")

    return decide


def no_correlation(e: Evidence) -> Verdict:
    """MoE: hardness and activity."""
    own, other = (
        e.interval("moe", "published", "gate", f"routing.{key}") for key in ("corr_hardness", "corr_reference")
    )
    ours = e.mean("moe", "ours", "gate", "routing.corr_hardness")
    number = f"correlation with the model's own uncertainty {own.mean:.3f} ± {own.std:.3f}"
    number += f", with another network's {other.mean:.3f} ± {other.std:.3f}; ours {ours:.3f}"
    return verdict(abs(own.mean) < 0.05, number)


def complementary(e: Evidence) -> Verdict:
    """PBMC3k: DynamicGate+RigL saves more than RigL."""
    both, rigl = (e.mean("pbmc3k", "published", model, "relative") for model in ("gate+rigl", "rigl"))
    own = e.mean("pbmc3k", "published", "gate+rigl", "claimed")
    number = f"gate networks counted {both:.3f} of the dense MACs against {rigl:.3f} for rigl ({own:.3f} without them)"
    return verdict(both < rigl, f"as published {number}")


def dynamic_structure(e: Evidence) -> Verdict:
    """PBMC3k: do mask updates make RigL good?"""
    updates = e.mean("pbmc3k", "published", "rigl", "mask_updates")
    gain, p, text = difference("pbmc3k", "rigl", "static-sparse", e, "ours")
    number = f"as published it updates its masks {updates:.0f} times in 80 steps; ours, where it does: {text}"
    return verdict(updates > 0 and gain > 0 and p < SIGNIFICANT, number)


def sixty_percent(e: Evidence) -> Verdict:
    """PBMC3k: 60.57 % of the MACs saved."""
    executed, own = (e.interval("pbmc3k", "published", "gate", key) for key in ("relative", "claimed"))
    number = f"as published {executed.mean:.3f} ± {executed.std:.3f} executed"
    return verdict(executed.mean <= 0.40, f"{number}, {own.mean:.3f} ± {own.std:.3f} by its own count")


def largest_f1(e: Evidence) -> Verdict:
    """PBMC3k: the largest gain in macro-F1."""
    names = ("dense", "dropout", "pruned", "gate", "rigl", "gate+rigl")
    scores = {name: e.mean("pbmc3k", "published", name, "macro_f1") for name in names}
    best = max(scores, key=lambda name: scores[name])
    return verdict(
        best == "gate", f"as published {best} has the largest, {scores[best]:.2%}; gate {scores['gate']:.2%}"
    )


def best_accuracy(e: Evidence) -> Verdict:
    """PBMC3k: RigL-only is the most accurate."""
    names = ("dense", "dropout", "pruned", "gate", "rigl", "gate+rigl")
    scores = {name: e.mean("pbmc3k", "published", name, "accuracy") for name in names}
    best = max(scores, key=lambda name: scores[name])
    return verdict(best == "rigl", f"as published {best} is, {scores[best]:.2%}; rigl {scores['rigl']:.2%}")


def varies(e: Evidence) -> Verdict:
    """PBMC3k: cost varies from run to run."""
    own, ours = e.interval("pbmc3k", "published", "gate", "relative"), e.interval("pbmc3k", "ours", "gate", "relative")
    number = f"standard deviation of the executed fraction over seeds as published {own.std:.3f}"
    return verdict(own.std >= 0.05, f"{number}, ours, in a closed loop, {ours.std:.3f}")


def slower(e: Evidence) -> Verdict:
    """PBMC3k: a training step takes longer."""
    times = {name: e.mean("pbmc3k", "published", name, "seconds_relative") for name in ("gate", "rigl", "gate+rigl")}
    shown = ", ".join(f"{name} {value:.2f}" for name, value in times.items())
    return verdict(times["gate"] > 1.0, f"training step relative to dense, as published: {shown}")


def three_seeds(_: Evidence) -> Verdict:
    """PBMC3k: which numbers of seeds can give the printed accuracies on 540 test cells?"""
    printed = (91.83, 92.48, 92.17, 92.57, 93.33, 92.43)

    def possible(seeds: int) -> int:
        rows = 540 * seeds
        return sum(any(round(100 * k / rows, 2) == a for k in range(int(rows * 0.9), rows)) for a in printed)

    number = f"of the six printed accuracies {possible(3)} can be a mean of 3 runs on 540 cells"
    return verdict(possible(3) == len(printed), f"{number}, {possible(5)} of 5 runs, {possible(10)} of 10")


def never_compared(_: Evidence) -> Verdict:
    """A statement about the paper itself, which reading decides."""
    number = "the paper prints no such table, and its published code has no such run; ours are in the tables below"
    return Verdict("does not hold", number)


CLAIMS = (
    Claim("1.4", "RigL and DynamicGate+RigL were compared on MNIST and CIFAR-10", never_compared),
    Claim("5.1", "MNIST: the accuracy of the baseline at 21.7 % less compute", same_for_less("mnist")),
    Claim("5.1", "MNIST: input gates close, hidden gates stay mostly open", hidden_stay_open),
    Claim("5.1", "MNIST: activation patterns depend on the input", depends_on_the_input("mnist")),
    Claim("5.1", "MNIST: dropout gains accuracy (98.31 against 98.07)", better("mnist", "dropout", "dense")),
    Claim("5.1", "MNIST: pruning costs a little accuracy (98.02 against 98.07)", better("mnist", "dense", "pruned")),
    Claim("5.2", "CIFAR-10: pruning gains 5.6 points", pruning_gains),
    Claim("5.2", "CIFAR-10: dropout loses 1.85 points", better("cifar10", "dense", "dropout")),
    Claim("5.2", "CIFAR-10: the accuracy of the baseline at 0.843 of its compute", same_for_less("cifar10")),
    Claim("5.2", "CIFAR-10: the second layer is selectively activated for each input", depends_on_the_input("cifar10")),
    Claim("5.3", "Tiny-ImageNet: DynamicGate saves 80 %", gates_save),
    Claim("5.3", "Tiny-ImageNet: DynamicGate outperforms dropout", better("tiny-imagenet", "gate+rigl", "dropout")),
    Claim("5.3", "Tiny-ImageNet: pruning gains accuracy (4.28 against 3.24)", better(
        "tiny-imagenet", "pruned", "dense")),
    Claim("5.4", "Speech: the accuracy of the baseline at less compute", speech_for_less),
    Claim("5.4", "Speech: units close for easy or redundant inputs", depends_on_the_input("speech")),
    Claim("5.5", "MoE: accuracy comparable to or better than SwitchMoE", as_accurate_as_experts),
    Claim("5.5", "MoE: DynamicGate uses less compute than SwitchMoE", cheaper_than("switch top-2")),
    Claim("5.5", "MoE: DynamicGate shows a meaningful reduction", cheaper_than("dense")),
    Claim("5.5", "MoE: SwitchMoE collapses to about 10 % in early epochs", early_collapse),
    Claim("5.5", "MoE: activations become sparser as training goes on", falls(
        "gate", "active_by_epoch", "open fraction")),
    Claim("5.5", "MoE: fewer assignments are dropped as routing settles", falls(
        "switch top-2", "dropped_by_epoch", "dropped assignments")),
    Claim("5.5", "MoE: hardness and activity do not correlate", no_correlation),
    Claim("5.6", "PBMC3k: DynamicGate saves 60.6 % of the MACs", sixty_percent),
    Claim("5.6", "PBMC3k: DynamicGate gains most in macro-F1", largest_f1),
    Claim("5.6", "PBMC3k: RigL-only is the most accurate", best_accuracy),
    Claim("5.6", "PBMC3k: dynamic structural sparsity improves accuracy", dynamic_structure),
    Claim("5.6", "PBMC3k: DynamicGate+RigL saves more than RigL, the two complement each other", complementary),
    Claim("5.6", "PBMC3k: the cost of DynamicGate varies much from seed to seed", varies),
    Claim("5.6", "PBMC3k: gates make training slower", slower),
    Claim("5.6", "PBMC3k: means over three seeds", three_seeds),
    Claim("6.1", "Choosing units by the input is better than one choice for all", against("static", "random")),
    Claim("6.1", "and better than a smaller network of equal cost", against("small")),
    Claim("6.4", "Gating reduces forgetting in continual learning", less_forgetting),
    Claim("7", "Compute reductions are proxies, not speed", not_speed),
    Claim("9", "Less compute at competitive accuracy on all five datasets", everywhere),
)  # fmt: skip
