"""Datasets by name or path: `load_dataset` returns training, validation and test rows."""

from dynamicgate.lab.datasets.data_folders import default_data_dir
from dynamicgate.lab.datasets.loading import LOADERS, load_dataset
from dynamicgate.lab.datasets.sources import SOURCES
from dynamicgate.lab.datasets.splits import Splits, stratified_split

__all__ = ["LOADERS", "SOURCES", "Splits", "default_data_dir", "load_dataset", "stratified_split"]
