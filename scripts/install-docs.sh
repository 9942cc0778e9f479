#!/bin/sh
# Makes .venv-docs with mkdocs-material, which builds the documentation.
set -eu

venv=${1:-.venv-docs}
python=${PYTHON:-python3}

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip --disable-pip-version-check --quiet install --require-hashes --no-deps \
    --only-binary :all: -r requirements-docs.lock || {
    echo "install-docs: packages could not be installed: is a package index reachable?" >&2
    exit 1
}
touch "$venv/.installed"
