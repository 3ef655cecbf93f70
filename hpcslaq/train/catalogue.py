"""Models by name, and models of users' own by `module:Class` or `path.py:Class`.

User code is imported only when a job asks for it by name, never because of a checkpoint.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import zlib
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

from hpcslaq.errors import HpcslaqError, NotFoundError, TrainingError
from hpcslaq.train.model import Model
from hpcslaq.train.options import validate_options

#: Built-in models: name -> "module:Class".
MODELS: Mapping[str, str] = {
    "gbt": "hpcslaq.train.gbt:BoostedClassifier",
    "gbt_regressor": "hpcslaq.train.gbt:BoostedRegressor",
    "gmm": "hpcslaq.train.gmm:GaussianMixture",
    "kmeans": "hpcslaq.train.kmeans:KMeans",
    "lasso": "hpcslaq.train.linear:Lasso",
    "lda": "hpcslaq.train.lda:TopicModel",
    "linear": "hpcslaq.train.linear:LinearRegression",
    "logistic": "hpcslaq.train.logistic:LogisticRegression",
    "mlp": "hpcslaq.train.mlp:MLPClassifier",
    "mlp_regressor": "hpcslaq.train.mlp:MLPRegressor",
    "poly_svm": "hpcslaq.train.polysvm:PolynomialSVM",
    "softmax": "hpcslaq.train.softmax:SoftmaxRegression",
    "svm": "hpcslaq.train.svm:LinearSVM",
}


def load_model_class(name: str) -> type[Model]:
    """The class of a built-in model, of `package.module:Class`, or of `path.py:Class`.

    Raises NotFoundError if there is none (naming the valid ones), TrainingError if the module
    cannot be imported or the class is no `Model`.
    """
    place = MODELS.get(name, name)
    module_name, colon, class_name = place.rpartition(":")
    if not colon or not module_name:
        raise NotFoundError(
            f"model {name!r}: no such model (valid: {', '.join(sorted(MODELS))}, "
            "package.module:Class or path.py:Class)"
        )
    found = getattr(_load_module(name, module_name), class_name, None)
    if found is None:
        raise NotFoundError(f"model {name!r}: {module_name} has no {class_name!r}")
    if not (isinstance(found, type) and issubclass(found, Model)):
        raise TrainingError(f"model {name!r}: {class_name} is no subclass of hpcslaq's Model")
    return found


def build_model(name: str, options: Mapping[str, object]) -> Model:
    """The named model with these options. Raises as `load_model_class`, `validate_options`."""
    model_class = load_model_class(name)
    return model_class(validate_options(model_class, options))


def _load_module(name: str, module_name: str) -> ModuleType:
    try:
        # What a user's module prints must not end up in the output of a command.
        with redirect_stdout(sys.stderr):
            if module_name.endswith(".py"):
                return _load_file(name, Path(module_name).resolve())
            return importlib.import_module(module_name)
    except HpcslaqError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise NotFoundError(f"model {name!r}: there is no module {module_name}") from error
        raise TrainingError(f"model {name!r}: {module_name} needs {error.name}") from error
    except (Exception, SystemExit) as error:  # of user code, whatever it does
        problem = f"{type(error).__name__}: {error}"
        raise TrainingError(f"model {name!r}: {module_name} does not load: {problem}") from error


def _load_file(name: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise NotFoundError(f"model {name!r}: there is no file {path}")
    # Unique by path; registered because dataclasses look their module up.
    module_name = f"hpcslaq_user_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    is_loaded = False
    try:
        spec.loader.exec_module(module)
        is_loaded = True
    finally:
        if not is_loaded:
            del sys.modules[module_name]
    return module
