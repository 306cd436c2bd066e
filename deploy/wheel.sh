#!/bin/sh
# Makes a wheel of the Python package and of the programs that were built: `make wheel`. Builds no program.
#
#   wheel.sh OUTPUT
#
# From the environment: BUILT, the folder with the programs; PYTHON, a Python that has hatchling. OUTPUT is the folder
# of the wheel.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
output=$(cd "$1" && pwd)
: "${BUILT:?the folder with the programs}"
BUILT=$(cd "$BUILT" && pwd)
PYTHON=${PYTHON:-python3}
"$PYTHON" -c 'import hatchling' 2>/dev/null || {
    echo "$0: $PYTHON has no hatchling: make python installs it below python/.venv" >&2
    exit 1
}

# The licences are not below python/, from where a wheel takes its files.
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cp -r "$here/../python/strata" "$here/../python/pyproject.toml" "$here/../python/README.md" \
    "$here/../python/hatch_build.py" "$here/../LICENSE-MIT" "$here/../LICENSE-APACHE" "$tree"
find "$tree" -name __pycache__ -prune -exec rm -rf {} +
programs=$(cd "$BUILT" && for name in strata strata-telemetry strata-stream strata-vectors strata-fleet strata-models \
    strata-sql; do [ ! -x "$name" ] || echo "$name"; done)
# Its names are of programs of this repository.
# shellcheck disable=SC2086
"$PYTHON" "$here/third_party.py" "$tree" $programs
cd "$tree"
STRATA_BUILT=$BUILT STRATA_SBOM=strata.cdx.json "$PYTHON" -m hatchling build --target wheel --directory "$output"
