#!/usr/bin/env bash
# Makes a virtual environment and installs this project into it, once.
#   scripts/setup-venv.sh DIR EXTRAS [data]
# DIR is left alone when it was made from the same setup.cfg with the same arguments.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
dir=$1 extras=$2 data=${3:-}
python=${PYTHON:-python3}

stamp="$(sha256sum "$root/setup.cfg" "$root/scripts/fetch-data.sh" | cut -d' ' -f1 | tr '\n' ' ')$extras $data"
if [ -x "$dir/bin/hpcslaq" ] && [ "$(cat "$dir/.stamp" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "needs Python 3.11 or newer, $python is $("$python" -V 2>&1); set PYTHON=..." >&2
    exit 4
fi
echo "setting up $dir (a minute or two, once)"
if ! "$python" -m venv "$dir"; then
    echo "cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2
    exit 4
fi
"$dir/bin/pip" install --quiet --disable-pip-version-check -e "${root}[$extras]"
if [ -n "$data" ]; then
    "$root/scripts/fetch-data.sh" "$dir/bin/python"
fi
echo "$stamp" >"$dir/.stamp"
