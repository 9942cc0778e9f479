#!/bin/sh
# Makes .venv-ray with what runs on Ray need, from requirements-ray.lock: 0.8 GB, for x86-64 Linux.
# It is whole when its stamp is there, which is written last. Kairos itself is imported from here.
set -eu

venv=${1:-.venv-ray}
python=${PYTHON:-python3}

rm -f "$venv/.installed"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
echo "install-ray: packages from requirements-ray.lock into $venv (a minute)"
"$venv/bin/python" -m pip --disable-pip-version-check --quiet install --no-compile --require-hashes --no-deps \
    --only-binary :all: -r requirements-ray.lock || {
    echo "install-ray: packages could not be installed; is a package index reachable?" >&2
    exit 1
}
touch "$venv/.installed"
