"""Real data sets and users' files, converted once into memory-mappable caches."""

from hpcslaq.data.builtin import BUILTINS, missing_packages
from hpcslaq.data.cache import default_cache_root, prepare
from hpcslaq.data.dataset import Batch, Dataset
from hpcslaq.data.options import Option
from hpcslaq.data.source import DataSource, is_builtin, valid_options
from hpcslaq.data.store import open_dataset

__all__ = [
    # What to read
    "DataSource",
    "Option",
    "valid_options",
    "BUILTINS",
    "is_builtin",
    "missing_packages",
    # Once per source
    "default_cache_root",
    "prepare",
    # In every rank
    "open_dataset",
    "Dataset",
    "Batch",
]
