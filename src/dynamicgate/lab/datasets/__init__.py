"""Datasets by name or path: `load_dataset` returns training, validation and test rows.

Names are imported when they are first used, so that lists of datasets and help texts load without torch.
"""

from typing import TYPE_CHECKING

from dynamicgate.lazy_names import lazy_names

if TYPE_CHECKING:
    from dynamicgate.lab.datasets.data_folders import default_data_dir
    from dynamicgate.lab.datasets.loading import LOADERS, load_dataset
    from dynamicgate.lab.datasets.sources import SOURCES
    from dynamicgate.lab.datasets.splits import Splits, stratified_split

__all__ = ["LOADERS", "SOURCES", "Splits", "default_data_dir", "load_dataset", "stratified_split"]

_HOME = {
    "LOADERS": "loading",
    "SOURCES": "sources",
    "Splits": "splits",
    "default_data_dir": "data_folders",
    "load_dataset": "loading",
    "stratified_split": "splits",
}
__getattr__ = lazy_names(__name__, _HOME)
