"""Models and their controls, trained over paired seeds into one folder."""

from dynamicgate.lab.methods.hyperparameters import Hyperparameters, Settings, settings_hash
from dynamicgate.lab.methods.models import MODELS
from dynamicgate.lab.methods.train_one import compare, run_one

__all__ = ["MODELS", "Hyperparameters", "Settings", "compare", "run_one", "settings_hash"]
