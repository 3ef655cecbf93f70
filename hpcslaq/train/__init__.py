"""Models in summation form and the loop that trains them, the same bits on any allocation.

The interface for models of your own is documented in `hpcslaq.train.model` and, with an
example, in docs/models.md.
"""

from hpcslaq.core.jobs import Convergence
from hpcslaq.train.catalogue import MODELS, build_model, load_model_class
from hpcslaq.train.model import (
    Batch,
    Chunk,
    Context,
    DataInfo,
    Draw,
    Model,
    Slices,
    Step,
    TrainingData,
    batch_rows,
    data_info,
    require_classes,
    require_regression,
    steps_for_batches,
)
from hpcslaq.train.options import Option, validate_options
from hpcslaq.train.reducer import Reducer, Solo
from hpcslaq.train.state import TrainState, initial_state
from hpcslaq.train.trainer import (
    Failure,
    Flag,
    StepReport,
    StopRule,
    Trainer,
    chunk_share,
)

__all__ = [
    # what a model of your own needs
    "Model",
    "Option",
    "Step",
    "Slices",
    "Chunk",
    "Draw",
    "Context",
    "DataInfo",
    "Batch",
    "TrainingData",
    "Convergence",
    "batch_rows",
    "steps_for_batches",
    "require_classes",
    "require_regression",
    # what a driver needs
    "MODELS",
    "build_model",
    "load_model_class",
    "validate_options",
    "data_info",
    "initial_state",
    "TrainState",
    "Trainer",
    "Reducer",
    "Solo",
    "Flag",
    "StepReport",
    "StopRule",
    "Failure",
    "chunk_share",
]
