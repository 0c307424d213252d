"""The compared models and their controls, their hyperparameters, and how one of them is trained."""

from dynamicgate.lab.methods.hyperparameters import Hyperparameters, Settings, settings_hash
from dynamicgate.lab.methods.models import MODELS
from dynamicgate.lab.methods.train_one import run_one

__all__ = ["MODELS", "Hyperparameters", "Settings", "run_one", "settings_hash"]
