"""Data in memory: `Arrays` of rows and labels, checks, shuffled batches, and the `Schema` that a model carries."""

from dynamicgate.data.arrays import Arrays
from dynamicgate.data.batching import batches
from dynamicgate.data.checks import check_arrays
from dynamicgate.data.contract import inputs_of
from dynamicgate.data.schema import Column, Schema, put_schema_, schema_of

__all__ = ["Arrays", "Column", "Schema", "batches", "check_arrays", "inputs_of", "put_schema_", "schema_of"]
