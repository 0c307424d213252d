"""The compared models and their controls, their hyperparameters, and how one of them is trained.

Names are imported when they are first used, so that help texts, which need `fields` alone, load without torch.
"""

from typing import TYPE_CHECKING

from dynamicgate.lazy_names import lazy_names

if TYPE_CHECKING:
    from dynamicgate.lab.methods.fields import Hyperparameters
    from dynamicgate.lab.methods.hyperparameters import Settings, settings_hash
    from dynamicgate.lab.methods.models import MODELS
    from dynamicgate.lab.methods.train_one import run_one

__all__ = ["MODELS", "Hyperparameters", "Settings", "run_one", "settings_hash"]

_HOME = {
    "Hyperparameters": "fields",
    "MODELS": "models",
    "Settings": "hyperparameters",
    "run_one": "train_one",
    "settings_hash": "hyperparameters",
}
__getattr__ = lazy_names(__name__, _HOME)
