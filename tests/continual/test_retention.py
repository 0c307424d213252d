"""What is read off the accuracy matrix, by hand-made matrices: one test for each mistake that others have made."""

from __future__ import annotations

import json
import math

import pytest
import torch

from dynamicgate.continual import Retention

# Task 0 is best after task 1 and then forgotten; task 1 improves at the end.
R = torch.tensor([[0.90, 0.20, 0.10], [0.95, 0.80, 0.15], [0.60, 0.85, 0.70]])


def test_means_of_rows_and_diagonals() -> None:
    found = Retention(R)
    assert found.acc == pytest.approx((0.60 + 0.85 + 0.70) / 3)
    assert found.learned == pytest.approx((0.90 + 0.80 + 0.70) / 3)
    assert (len(found), found.learned_tasks) == (3, 3)


def test_backward_transfer_is_a_mean_over_all_tasks_but_the_last() -> None:
    assert Retention(R).bwt == pytest.approx((0.60 - 0.90 + 0.85 - 0.80) / 2)  # dividing by 3 would give -0.083


def test_forgetting_looks_for_the_best_of_the_past_and_not_only_just_after_learning() -> None:
    assert Retention(R).forgetting == pytest.approx(((0.95 - 0.60) + (0.80 - 0.85)) / 2)
    assert Retention(R).forgetting != pytest.approx(-Retention(R).bwt)


def test_forgetting_may_be_negative_because_the_last_row_is_no_candidate() -> None:
    better = torch.tensor([[0.5, 0.1], [0.7, 0.6]])
    assert Retention(better).forgetting == pytest.approx(-0.2)


def test_forgetting_after_the_second_task_is_not_zero_by_definition() -> None:
    assert Retention(R).forgetting_after(1) == pytest.approx(0.90 - 0.95)
    assert math.isnan(Retention(R).forgetting_after(0))


def test_forward_transfer_compares_with_the_untrained_model_and_skips_the_first_task() -> None:
    found = Retention(R, untrained=torch.tensor([0.5, 0.1, 0.1]))
    assert found.fwt == pytest.approx(((0.20 - 0.1) + (0.15 - 0.1)) / 2)
    assert math.isnan(Retention(R).fwt)
    unseen = R.clone()
    unseen[0, 1] = unseen[1, 2] = float("nan")  # class-incremental: unseen classes cannot be asked for
    assert math.isnan(Retention(unseen, untrained=torch.zeros(3)).fwt)
    assert "FWT –" in repr(Retention(unseen))


def test_intransigence_is_what_joint_training_would_have_learned_more() -> None:
    assert Retention(R, joint=torch.tensor([0.9, 0.9, 0.9])).intransigence == pytest.approx(0.9 - (0.9 + 0.8 + 0.7) / 3)
    assert math.isnan(Retention(R).intransigence)


def test_the_stability_gap_sees_a_drop_that_is_made_good_later() -> None:
    recovered = torch.tensor([[0.9, 0.1], [0.9, 0.8]])
    found = Retention(recovered, lowest=torch.tensor([0.3, 0.8]))
    assert (found.forgetting, found.stability_gap) == (pytest.approx(0.0), pytest.approx(0.6))


def test_plasticity_is_relative_to_a_fresh_network() -> None:
    found = Retention(R, online=[0.6, 0.7, 0.4], fresh=[0.8, 0.7, 0.8])
    assert found.plasticity == pytest.approx([0.75, 1.0, 0.5])
    with pytest.raises(ValueError, match="3 were followed and 1 learned"):
        _ = Retention(R, online=[0.6, 0.7, 0.4], fresh=[0.8]).plasticity


def test_ageing_leaves_out_the_tasks_that_still_learn_to_learn() -> None:
    online = [0.1] * 2 + [0.9] * 2 + [0.8] * 14 + [0.7] * 2
    assert Retention(R, online=online).ageing == pytest.approx(-0.2)
    assert math.isnan(Retention(R, online=[0.5] * 9).ageing)


def test_by_age_begins_with_the_youngest_task() -> None:
    assert Retention(R).by_age() == pytest.approx([0.70, 0.85, 0.60])
    assert Retention(R).by_age(1) == pytest.approx([0.80, 0.95])


def test_one_task_has_nothing_to_forget() -> None:
    found = Retention(torch.tensor([[0.9]]))
    assert found.acc == pytest.approx(0.9)
    assert all(math.isnan(value) for value in (found.bwt, found.fwt, found.forgetting, found.stability_gap))


def test_json_and_back() -> None:
    found = Retention.empty(3)
    found.matrix[0] = torch.tensor([0.5, float("nan"), 0.25], dtype=torch.float64)
    found.online, found.fresh = [0.5], [float("nan")]
    again = Retention.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))
    assert math.isnan(again.fresh[0])
    assert torch.equal(again.matrix.nan_to_num(-1), found.matrix.nan_to_num(-1))
    assert (again.online, again.joint, again.learned_tasks) == ([0.5], None, 1)


def test_what_is_no_matrix_of_tasks_is_refused() -> None:
    with pytest.raises(ValueError, match="square matrix"):
        Retention(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="untrained has one accuracy for each of 3 tasks"):
        Retention(R, untrained=torch.zeros(2))
