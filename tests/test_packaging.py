"""The recipes and module files of packaging/ say what setup.cfg says, and can be read."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hpcslaq import __version__

ROOT = Path(__file__).resolve().parents[1]
PACKAGING = ROOT / "packaging"

_REQUIREMENT = re.compile(r"([a-z0-9-]+) *>= *([0-9.]+)")


def requirements(section: str, key: str) -> dict[str, str]:
    """Lowest version by package, of one list in setup.cfg."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return dict(_REQUIREMENT.findall(config[section][key]))


def test_the_conda_recipe_has_the_requirements_of_setup_cfg():
    text = (PACKAGING / "conda-forge" / "recipe.yaml").read_text()
    run = text[text.index("  run:") : text.index("tests:")]
    assert dict(_REQUIREMENT.findall(run)) == requirements("options", "install_requires")
    assert f'version: "{__version__}"' in text


class Recipe:
    """What `spack.package` offers to a recipe, as far as ours uses it; notes the dependencies."""

    def __init__(self) -> None:
        #: Specs of `depends_on` by variant; "" for those of every installation.
        self.needs: dict[str, list[str]] = {"": []}
        self._variant = ""

    def module(self) -> ModuleType:
        made = ModuleType("spack.package")
        for name in ("license", "version", "variant"):
            setattr(made, name, lambda *words, **options: None)
        for name in ("depends_on", "when"):
            setattr(made, name, getattr(self, name))
        made.PythonPackage = type("PythonPackage", (), {})  # type: ignore[attr-defined]
        return made

    def depends_on(self, spec: str, type: Any) -> None:
        self.needs[self._variant].append(spec)

    def when(self, condition: str) -> Any:
        self._variant = condition
        self.needs[condition] = []
        return nullcontext()


def test_the_spack_recipe_has_the_requirements_of_setup_cfg(monkeypatch):
    recipe = Recipe()
    monkeypatch.setitem(sys.modules, "spack", ModuleType("spack"))
    monkeypatch.setitem(sys.modules, "spack.package", recipe.module())
    namespace: dict[str, Any] = {}
    exec((PACKAGING / "spack" / "package.py").read_text(), namespace)
    assert "PyHpcslaq" in namespace

    def expected(section: str, key: str) -> set[str]:
        return {f"py-{name}@{least}:" for name, least in requirements(section, key).items()}

    others = {"python@3.11:", "py-setuptools@68:"}
    assert set(recipe.needs[""]) - others == expected("options", "install_requires")
    assert set(recipe.needs["+data"]) == expected("options.extras_require", "data")
    assert set(recipe.needs["+report"]) == expected("options.extras_require", "report")


TCL = """
set ModulesCurrentModulefile /modules/hpcslaq/1.2
set env(SCRATCH) /scratch
foreach name {module-whatis module prepend-path setenv} {
    proc $name args "puts \\"$name \\$args\\""
}
"""
LUA = """
function show(name) return function(...) print(name, ...) end end
help, whatis, depends_on = show "help", show "whatis", show "depends_on"
prepend_path, pushenv = show "prepend_path", show "pushenv"
function myModuleVersion() return "1.2" end
function pathJoin(a, b) return a .. "/" .. b end
os.getenv = function() return "/scratch" end
"""


@pytest.mark.parametrize(
    ("ending", "interpreters", "prelude"),
    [("tcl", ("tclsh",), TCL), ("lua", ("lua", "lua5.4", "lua5.3", "lua5.1"), LUA)],
)
def test_the_module_files_set_the_path_and_the_cache(ending, interpreters, prelude):
    found = [path for name in interpreters if (path := shutil.which(name))]
    if not found:
        pytest.skip(f"none of {', '.join(interpreters)} is here")
    text = (PACKAGING / "modulefiles" / f"hpcslaq.{ending}").read_text()
    source = prelude + text
    # Neither takes a program of several lines from the command line alike: standard input.
    line = [found[0], "-"] if ending == "lua" else [found[0]]
    done = subprocess.run(
        line, input=source, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    words = done.stdout.split()
    assert "openmpi" in words
    assert "/apps/hpcslaq/1.2/bin" in words
    assert {"XDG_CACHE_HOME", "/scratch/cache"} <= set(words)
