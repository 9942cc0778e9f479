#!/bin/sh
# Makes .venv-fuzz with Kairos's own dependencies and atheris, which no test needs.
set -eu

venv=${1:-.venv-fuzz}
python=${PYTHON:-python3}

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip --disable-pip-version-check --quiet install --require-hashes --no-deps \
    --only-binary :all: -r requirements-runtime.lock -r tests/fuzz/requirements.lock || {
    echo "install-fuzzer: packages could not be installed: atheris is there for Linux and Python" \
        "3.11 to 3.13 (set PYTHON), and is a package index reachable?" >&2
    exit 1
}
touch "$venv/.installed"
