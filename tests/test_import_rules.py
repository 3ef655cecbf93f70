"""The direction of imports and what is forbidden where, read from the sources' syntax trees.

cli
mpi | sim | report | slurm        peers never import one another
record | policies | train | data  peers never import one another
predict
core                              standard library only
errors
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcslaq

ROOT = Path(hpcslaq.__file__).parent
LAYERS = [
    {"errors"},
    {"core"},
    {"predict"},
    {"record", "policies", "train", "data"},
    {"mpi", "sim", "report", "slurm"},
    {"cli"},
]
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
#: Roots that compose the layers: module -> packages it may import besides errors and core.
COMPOSERS = {"models": {"record", "train"}, "__init__": {"models"}, "__main__": {"cli"}}
#: Sources of time, chance, files and threads; pure layers get them as arguments.
IMPURE = {"time", "random", "os", "pathlib", "logging", "threading"}
PURE = {"errors", "core", "predict", "policies"}
#: Modules with MPI operations on the world communicator.
BOOT = {"mpi/launch.py", "mpi/boot.py"}
WORLD_COLLECTIVES = {"Split", "Split_type", "Barrier"}

FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


def package_of(file: str) -> str:
    """The layer's package, or the module's name for modules of the root."""
    return file.split("/")[0].removesuffix(".py")


def imports_of(file: str, tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Full names of all imported modules and names, with their lines."""
    here = ["hpcslaq", *file.split("/")[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*here[: len(here) - node.level + 1], *filter(None, [base])])
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def faults_of_import(file: str, name: str) -> Iterator[str]:
    """What is wrong with importing `name` in `file`."""
    package, parts = package_of(file), name.split(".")
    top = parts[0]
    if top == "hpcslaq":
        target = parts[1] if len(parts) > 1 else "__init__"
        if package in COMPOSERS:
            if target not in COMPOSERS[package] | {"errors", "core"}:
                yield f"{package} composes {sorted(COMPOSERS[package])} only"
        elif target in ("__version__", "__init__"):
            pass
        elif target == "models":
            if package != "cli":
                yield "models is at the level of cli"
        elif target not in LEVEL or package not in LEVEL:
            yield "a package without a layer"
        elif target != package and LEVEL[target] >= LEVEL[package]:
            yield f"{package} may not import {target}"
    elif package in ("errors", "core") and top not in sys.stdlib_module_names:
        yield f"{package} is standard library only"
    if package in PURE and top in IMPURE:
        yield f"{package} is pure"
    if top == "mpi4py" and package != "mpi":
        yield "mpi4py is for hpcslaq/mpi"
    if top == "h5py" and file != "record/checkpoint.py" and package != "data":
        yield "h5py is for record/checkpoint.py and the data files"
    if top in ("click", "rich") and package != "cli":
        yield f"{top} is for hpcslaq/cli"


def faults_of_calls(file: str, tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Prints, and collectives or uses of the world outside the start-up."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id == "print":
                yield "print", node.lineno
            if isinstance(called, ast.Attribute) and package_of(file) == "mpi":
                owner = ast.unparse(called.value).lower()
                is_world = "world" in owner.split(".")[-1]
                if file not in BOOT and (
                    called.attr in WORLD_COLLECTIVES or (is_world and called.attr == "bcast")
                ):
                    yield f"{owner}.{called.attr} outside the start-up", node.lineno
        if isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if name == "COMM_WORLD" and file not in BOOT:
                yield "COMM_WORLD outside the start-up", node.lineno


def faults_of(file: str, text: str) -> list[str]:
    tree = ast.parse(text)
    faults = [
        f"{file}:{line}: {name}: {fault}"
        for name, line in imports_of(file, tree)
        for fault in faults_of_import(file, name)
    ]
    return faults + [f"{file}:{line}: {fault}" for fault, line in faults_of_calls(file, tree)]


@pytest.mark.parametrize("file", FILES)
def test_a_module_keeps_the_rules(file: str) -> None:
    assert faults_of(file, (ROOT / file).read_text()) == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("core/a.py", "import numpy"),
        ("core/a.py", "import hpcslaq.predict.models"),
        ("core/a.py", "from hpcslaq import policies"),
        ("core/a.py", "from ..policies import fair"),
        ("core/a.py", "def f():\n    import time"),
        ("errors.py", "from hpcslaq.core import jobs"),
        ("predict/a.py", "from random import Random"),
        ("policies/a.py", "import os.path"),
        ("policies/a.py", "from hpcslaq.train import catalogue"),
        ("record/a.py", "from hpcslaq.data import formats"),
        ("record/a.py", "import h5py"),
        ("sim/a.py", "from hpcslaq.mpi import driver"),
        ("sim/a.py", "from mpi4py import MPI"),
        ("report/a.py", "from rich.table import Table"),
        ("mpi/a.py", "from hpcslaq.cli import main"),
        ("mpi/a.py", "comm = MPI.COMM_WORLD"),
        ("mpi/a.py", "self.world.Barrier()"),
        ("mpi/a.py", "comm.Split(0)"),
        ("mpi/a.py", "world.bcast(1)"),
        ("train/a.py", "print(1)"),
        ("train/a.py", "from hpcslaq import load_model"),
        ("models.py", "from hpcslaq.mpi import driver"),
        ("odds_and_ends.py", "from hpcslaq.core import jobs"),
    ],
)
def test_a_breach_is_noticed(file: str, text: str) -> None:
    assert len(faults_of(file, text)) >= 1


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("core/a.py", "import math\nfrom hpcslaq.errors import PolicyError"),
        ("core/a.py", "from hpcslaq.core import jobs\nfrom . import events"),
        ("predict/a.py", "import numpy as np\nfrom hpcslaq.core.jobs import JobSpec"),
        ("policies/a.py", "from hpcslaq.predict import curves"),
        ("data/formats.py", "import h5py"),
        ("record/checkpoint.py", "import h5py, os"),
        ("mpi/a.py", "from mpi4py import MPI\ngroup.bcast(1)\nworld.send(1)"),
        ("mpi/launch.py", "MPI.COMM_WORLD.Split(0)"),
        ("mpi/a.py", "text.split()"),
        ("models.py", "from hpcslaq.record import checkpoint\nfrom hpcslaq.train import catalogue"),
        (
            "cli/a.py",
            "import click, rich\nfrom hpcslaq.sim import simulator\nimport hpcslaq.models",
        ),
        ("report/a.py", "from hpcslaq import __version__"),
    ],
)
def test_what_is_allowed_passes(file: str, text: str) -> None:
    assert faults_of(file, text) == []
