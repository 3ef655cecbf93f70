"""The script that fetches the data installs what the built-in sets ask for."""

from __future__ import annotations

import re
from pathlib import Path

from hpcslaq.data import BUILTINS
from hpcslaq.data.packages import LDA

ROOT = Path(__file__).parents[2]


def test_the_script_and_the_extra_name_every_package_of_the_sets() -> None:
    script = (ROOT / "scripts" / "fetch-data.sh").read_text(encoding="utf-8")
    setup = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    extra = re.search(r"\ndata =\n((?:    .*\n)+)", setup)
    packages = {package for builtin in BUILTINS.values() for package in builtin.packages}
    for package in packages - {LDA}:
        if package.is_files_only:
            assert f" {package.name}=={package.version}" in script
        else:
            assert f"    {package.name} >=" in extra.group(1)
