"""`python -m mpi4py -m hpcslaq.mpi RUN`: one rank of a prepared run; started by mpirun."""

from __future__ import annotations

import os
import sys

from hpcslaq.mpi.launch import THREAD_VARIABLES

# Before numpy is imported: one BLAS thread a rank, unless the user wants more.
for _name in THREAD_VARIABLES:
    os.environ.setdefault(_name, "1")


def _main() -> int:
    from pathlib import Path

    from hpcslaq.errors import HpcslaqError
    from hpcslaq.mpi.main import run_ranks

    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m mpi4py -m hpcslaq.mpi RUN\n")
        return 2
    try:
        return run_ranks(lambda: Path(sys.argv[1]))
    except HpcslaqError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code


sys.exit(_main())
