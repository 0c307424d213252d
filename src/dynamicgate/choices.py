"""Names that options choose from, for help texts: nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

Policy = Literal["hard", "soft", "bernoulli", "concrete", "gumbel"]
Distribution = Literal["uniform", "erk"]
PlanName = Literal["two", "three"]
Form = Literal["auto", "skip", "masks"]
ALLOWED: Mapping[str, str] = MappingProxyType(
    {
        "missing-columns": "columns (genes) that the data lacks get the value that the model fills in",
        "new-categories": "categories that the model never saw are none of those it knows",
        "new-classes": "rows of classes that the model does not know are left out of the score",
        "other-range": "values that the model cannot have been trained on are used as they are",
    }
)
"""What data by name may be allowed, and what then happens."""
