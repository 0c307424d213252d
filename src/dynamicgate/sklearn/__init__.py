"""scikit-learn estimators with a compute budget: `DynamicGateClassifier` and `DynamicGateRegressor`.

Needs the extra `sklearn`.
"""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError(
        "dynamicgate.sklearn needs scikit-learn, which is not installed: pip install 'dynamicgate[sklearn]'"
    ) from error

from dynamicgate.sklearn.classifier import DynamicGateClassifier
from dynamicgate.sklearn.regressor import DynamicGateRegressor

__all__ = ["DynamicGateClassifier", "DynamicGateRegressor"]
