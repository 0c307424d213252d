"""Datasets by name or path: `load_dataset` gives training, validation and test rows."""

from dynamicgate.lab.datasets.loading import LOADERS, load_dataset
from dynamicgate.lab.datasets.splits import Splits, stratified_split

__all__ = ["LOADERS", "Splits", "load_dataset", "stratified_split"]
