"""Values of kept rows, in a byte each where the data are bytes: pixels and labels are scaled, but few differ.

Shapes in names: R rows that there is room for, B rows that come, V different values.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST = 256  # different values that a byte can name
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class KeptColumn:
    """One thing that is kept of every row, such as its inputs or its label.

    As long as at most 256 different values have come, a value takes one byte and a table says what each byte means;
    reading gives the same bits. With more of them all are kept as they are. Nothing is rounded.
    """

    def __init__(self, room: int, like: Tensor) -> None:
        """For so many rows of the shape and type of `like` [B, ...]."""
        self.dtype = like.dtype
        self.table_V: Tensor | None = like.new_zeros(0)
        self.rows_R = torch.zeros(room, *like.shape[1:], dtype=torch.uint8, device=like.device)

    def __getitem__(self, at: Tensor) -> Tensor:
        """Rows as they came."""
        found = self.rows_R[at.to(self.rows_R.device)]
        return found if self.table_V is None else self.table_V[found.long()]

    @torch.no_grad()
    def write_(self, at: Tensor, values: Tensor) -> None:
        """Put rows in their places."""
        values = values.to(self.rows_R.device, self.dtype)
        if self.table_V is not None:
            self._learn(values)
        stored = values if self.table_V is None else self._codes(values)
        self.rows_R[at.to(self.rows_R.device)] = stored

    def _learn(self, values: Tensor) -> None:
        """Enter new values into the table; give it up where there are too many. Values are compared by their bits, so
        that a NaN and both zeros come back as they were."""
        assert self.table_V is not None
        table_V, found = _bits(self.table_V), _bits(values).unique()
        new = found[~torch.isin(found, table_V)]
        if len(table_V) + len(new) <= MOST:
            self.table_V = torch.cat([table_V, new]).view(self.dtype)
            return
        self.rows_R = self.table_V[self.rows_R.long()] if len(table_V) else values.new_zeros(self.rows_R.shape)
        self.table_V = None

    def _codes(self, values: Tensor) -> Tensor:
        assert self.table_V is not None
        ordered_V, place_V = _bits(self.table_V).sort()
        return place_V[torch.searchsorted(ordered_V, _bits(values).contiguous())].to(torch.uint8)

    def state_dict(self) -> dict[str, Tensor]:
        """What is kept, for safetensors: all of it counts."""
        return {"": self.rows_R} if self.table_V is None else {"": self.rows_R, ".table": self.table_V}

    @staticmethod
    def of(rows_R: Tensor, table_V: Tensor | None) -> KeptColumn:
        """The inverse of `state_dict`."""
        column = KeptColumn(0, rows_R if table_V is None else table_V[:, None])
        column.rows_R, column.table_V = rows_R, table_V
        return column


def _bits(values: Tensor) -> Tensor:
    """The same bits as whole numbers."""
    return values if values.dtype == torch.bool else values.view(BITS[values.element_size()])
