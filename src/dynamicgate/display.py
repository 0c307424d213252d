"""How results show themselves: one line in a prompt, the full text when printed, and that text in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def first_few(names: Sequence[object], most: int) -> str:
    """The first names of a list, and how many more there are."""
    more = len(names) - most
    return ", ".join(map(str, names[:most])) + (f" and {more} more" if more > 0 else "")


class ShownAsText:
    """For classes whose `str` is a table: a short `repr` instead of all fields, and the table in a notebook.

    A dataclass with this base needs `repr=False`.
    """

    def _brief(self) -> str:
        """The most important numbers, in a few words."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._brief()}>"

    def _repr_html_(self) -> str:
        return f'<pre style="line-height:1.35">{escape(str(self))}</pre>'
