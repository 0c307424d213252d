"""The budget of stages: where the cut must be so that rows execute the target on average."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dynamicgate.accounting.counter import MacCounter, deployed
from dynamicgate.accounting.stage_costs import ROUNDING, cumulative_macs, cut_for, opening_scores, stage_macs
from dynamicgate.data.contract import Inputs, call
from dynamicgate.distributed import gather_rows
from dynamicgate.gating.recording import Usage, usage
from dynamicgate.gating.stages import StageGate
from dynamicgate.modules import evaluating
from dynamicgate.sparsity import Sparsifier

STEER_EVERY = 10  # steps: scores change slowly, and on a GPU every look at them is a wait
FOLLOW = 0.3  # how far the cut then goes towards that of the last batch


class StageSteering:
    """Moves the cut in training, so that rows would execute the target at the densities that training ends with."""

    def __init__(self, counter: MacCounter, target: float, sparsifier: Sparsifier | None) -> None:
        """An error if the target does not even pay for the first stage."""
        self.counter, self.target = counter, target * counter.dense
        self.final_macs = final_stage_macs(counter, sparsifier)
        if not counter.gates:  # gates on units may close: what stages cost is known when they have
            check_pays_first_stage(self.target, self.final_macs, counter.dense)

    @torch.no_grad()
    def step(self, stages: StageGate, used: Usage) -> None:
        """Follow the cut that would have been right for this batch, with the rows of all processes."""
        assert used.stages is not None
        score_BK = used.stages.score.detach().flatten(0, -2)
        macs_BK = self._macs_of(used, len(score_BK)).to(score_BK.device)
        score_BK, macs_BK = gather_rows(score_BK), gather_rows(macs_BK)
        wanted = cut_for(score_BK, macs_BK, self.target)
        if not math.isfinite(wanted):  # all stages open for all rows: the cut lies below all scores
            wanted = float(score_BK.min()) - 1.0
        now = torch.full_like(stages.cut, wanted)
        stages.cut.copy_(torch.where(stages.cut.isfinite(), stages.cut.lerp(now, FOLLOW), now))

    def _macs_of(self, used: Usage, rows: int) -> Tensor:
        """MACs of each row if it stops after each stage; those of gated units as open as they are now."""
        if not self.counter.gates:
            return self.final_macs.expand(rows, -1)
        pruned_K = self.final_macs / stage_macs(self.counter)
        return cumulative_macs(self.counter, deployed(self.counter.gates, used), rows) * pruned_K


def final_stage_macs(counter: MacCounter, sparsifier: Sparsifier | None) -> Tensor:
    """MACs of stopping after each stage once the sparsifier has pruned everything it will."""
    return stage_macs(counter, None if sparsifier is None else sparsifier.pending_by_stage)


def check_pays_first_stage(target: float, macs_K: Tensor, dense: float) -> None:
    """A budget below the first stage is an error now, not a surprise after training."""
    least = float(macs_K[0])
    if target < least * (1.0 - ROUNDING):
        raise ValueError(
            f"a budget of {target / dense:.3g} cannot be met: the first stage, which every input opens, costs "
            f"{least / dense:.3g} of the dense MACs. Ask for more, or make the first stage smaller or sparser"
        )


@torch.no_grad()
def calibrate_stages_(model: nn.Module, counter: MacCounter, target: float, inputs: list[Inputs]) -> float:
    """Put the cut where the model executes `target` of the dense MACs on `inputs`; returns what it then executes."""
    stages = counter.stages
    assert stages is not None
    scores, macs = [], []
    with evaluating(model):
        for x in inputs:
            with usage(model) as used:
                call(model, x)
            assert used.stages is not None
            scores.append(used.stages.score.flatten(0, -2))
            macs.append(cumulative_macs(counter, deployed(counter.gates, used), len(scores[-1])))
    score_BK, macs_BK = torch.cat(scores), torch.cat(macs)
    check_pays_first_stage(target * counter.dense, macs_BK.mean(0), counter.dense)
    cut = cut_for(score_BK, macs_BK, target * counter.dense)
    stages.cut.fill_(cut)
    at_B = (opening_scores(score_BK) > stages.cut[0]).sum(1, keepdim=True)
    return float(macs_BK.gather(1, at_B).mean()) / counter.dense
