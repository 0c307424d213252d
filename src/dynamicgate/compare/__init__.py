"""Models and their controls, trained over paired seeds into one folder."""

from dynamicgate.compare.models import MODELS
from dynamicgate.compare.runs import compare, run_one
from dynamicgate.compare.settings import Knobs, Settings, settings_hash

__all__ = ["MODELS", "Knobs", "Settings", "compare", "run_one", "settings_hash"]
