"""Data in memory: `Arrays` of rows and labels, checks, and shuffled batches."""

from dynamicgate.data.arrays import Arrays
from dynamicgate.data.batching import batches
from dynamicgate.data.checks import check_arrays
from dynamicgate.data.contract import inputs_of

__all__ = ["Arrays", "batches", "check_arrays", "inputs_of"]
