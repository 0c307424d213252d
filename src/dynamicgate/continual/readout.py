"""An output layer in closed form from running sums: it equals ridge regression on everything seen, whatever the order.

Shapes in names: B rows, D features, C classes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Readout:
    """Classes from fixed features. No row is kept, only sums: D x D and D x C numbers of 8 bytes.

    New classes may come at any time. What was learned does not depend on the order of rows or tasks, so that nothing
    is forgotten: the weights are those of ridge regression on all rows together.

    features: of a row. decay: of the ridge, relative to the mean diagonal of the sums, so that it does not depend on
    the scale of the features or the number of rows.
    balanced: every class counts as much as any other, however many rows it has.
    """

    def __init__(self, features: int, *, decay: float = 1e-3, balanced: bool = False) -> None:
        """Nothing is learned yet."""
        if features < 1 or not decay > 0.0:
            raise ValueError(f"expected one feature or more and a decay above 0, received {features} and {decay}")
        self.features, self.decay, self.balanced = features, decay, balanced
        self.products_CDD = torch.zeros(0, features + 1, features + 1, dtype=torch.float64)
        self.sums_CD = torch.zeros(0, features + 1, dtype=torch.float64)
        self.counts_C = torch.zeros(0, dtype=torch.float64)

    @property
    def classes(self) -> int:
        """One more than the highest class seen."""
        return len(self.counts_C)

    @property
    def bytes(self) -> int:
        """What is kept between rows."""
        return 8 * (self.products_CDD.numel() + self.sums_CD.numel() + self.counts_C.numel())

    @torch.no_grad()
    def add(self, h_BD: Tensor, y_B: Tensor) -> None:
        """Learn from rows; they are not kept."""
        if h_BD.ndim != 2 or h_BD.shape[1] != self.features or len(h_BD) != len(y_B):
            raise ValueError(
                f"expected rows of {self.features} features and a class for each, received shapes {list(h_BD.shape)} "
                f"and {list(y_B.shape)}"
            )
        if y_B.ndim != 1 or y_B.is_floating_point() or y_B.dtype == torch.bool:
            raise ValueError(
                f"expected one whole number for the class of each row, received {y_B.dtype} of shape {list(y_B.shape)}"
            )
        if not bool(h_BD.isfinite().all()):
            raise ValueError("some features are NaN or infinite: they would spoil all sums")
        x_BD = torch.cat([h_BD.double().cpu(), torch.ones(len(h_BD), 1, dtype=torch.float64)], dim=1)
        y_B = y_B.cpu()
        if len(y_B) and int(y_B.min()) < 0:
            raise ValueError(f"classes are numbers from 0 on, received {int(y_B.min())}")
        self._grow(int(y_B.max()) + 1 if len(y_B) else 0)
        for number in y_B.unique().tolist():
            rows = x_BD[y_B == number]
            place = number if self.balanced else 0
            self.products_CDD[place] += rows.T @ rows
            self.sums_CD[number] += rows.sum(0)
            self.counts_C[number] += len(rows)

    def _grow(self, classes: int) -> None:
        new = classes - self.classes
        if new > 0:
            self.sums_CD = torch.cat([self.sums_CD, self.sums_CD.new_zeros(new, self.features + 1)])
            self.counts_C = torch.cat([self.counts_C, self.counts_C.new_zeros(new)])
        products = classes if self.balanced else min(1, classes)
        missing = products - len(self.products_CDD)
        if missing > 0:  # one sum for all classes, or one for each where each has a weight of its own
            size = self.features + 1
            self.products_CDD = torch.cat([self.products_CDD, self.products_CDD.new_zeros(missing, size, size)])

    @torch.no_grad()
    def solve(self) -> tuple[Tensor, Tensor]:
        """Weight [C, D] and bias [C] for an `nn.Linear`, in float32."""
        seen_C = self.counts_C > 0
        if not bool(seen_C.any()):
            raise ValueError("nothing was learned yet: call add(features, classes) first")
        if self.balanced:
            weight_C = torch.where(seen_C, self.counts_C.sum() / (seen_C.sum() * self.counts_C.clamp(min=1.0)), 0.0)
        else:
            weight_C = torch.ones_like(self.counts_C)
        products_DD = (weight_C[: len(self.products_CDD), None, None] * self.products_CDD).sum(0)
        size = float(products_DD.diagonal()[:-1].mean())  # of the squared features
        if not math.isfinite(size):
            raise ValueError("the squares of the features are too large to be summed: scale the features down")
        scale_D = torch.full((self.features + 1, 1), size**-0.5 if size > 0.0 else 1.0, dtype=torch.float64)
        scale_D[-1] = float(self.counts_C.sum()) ** -0.5
        penalty_D = torch.full((self.features + 1,), self.decay if size > 0.0 else 1e-12, dtype=torch.float64)
        penalty_D[-1] = 1e-12  # the bias is free
        scaled_DD = scale_D * products_DD * scale_D.T  # all of one size, so that nothing is lost in rounding
        found_DC = scale_D * torch.linalg.solve(
            scaled_DD + penalty_D.diag(), scale_D * (weight_C[:, None] * self.sums_CD).T
        )
        found_DC[:, ~seen_C] = 0.0
        return found_DC[:-1].T.float().contiguous(), found_DC[-1].float()

    def predict(self, h_BD: Tensor) -> Tensor:
        """The class of each row; classes that were never seen are never answered."""
        weight_CD, bias_C = (part.to(h_BD.device) for part in self.solve())
        scores_BC = h_BD.float() @ weight_CD.T + bias_C
        return scores_BC.masked_fill((self.counts_C == 0).to(h_BD.device), -torch.inf).argmax(1)

    def state_dict(self) -> dict[str, Tensor]:
        """The sums, for safetensors."""
        return {"products": self.products_CDD, "sums": self.sums_CD, "counts": self.counts_C}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue with the sums of `state_dict`."""
        expected = (self.features + 1, self.features + 1)
        if tuple(state["products"].shape[1:]) != expected or state["sums"].shape != (len(state["counts"]), expected[0]):
            raise ValueError(f"these sums are not those of a readout of {self.features} features")
        self.products_CDD, self.sums_CD, self.counts_C = (state[name] for name in ("products", "sums", "counts"))
