"""Datasets as plain tensors: `load` one, check your own with `check_arrays`, split it, and read it in `batches`."""

from dynamicgate.data.arrays import Arrays, Splits
from dynamicgate.data.batches import batches
from dynamicgate.data.check import check_arrays
from dynamicgate.data.download import get
from dynamicgate.data.load import LOADERS, default_data_dir, load
from dynamicgate.data.sources import SOURCES
from dynamicgate.data.split import stratified_split

__all__ = [
    "LOADERS",
    "SOURCES",
    "Arrays",
    "Splits",
    "batches",
    "check_arrays",
    "default_data_dir",
    "get",
    "load",
    "stratified_split",
]
