"""`python -m hpcslaq`: the same as the command `hpcslaq`."""

from __future__ import annotations

from hpcslaq.cli.main import main

main()
