#!/bin/sh
# Installs coding agents, the SDKs for Node, and vLLM's Agentic API, for the tests that run them
# before Kairos. Needs npm; Claude Code and Codex bring the programs that they run as.
set -eu
where=$1
if ! command -v npm >/dev/null 2>&1; then
    echo "install-agents: install Node.js 20 or later, with npm" >&2
    exit 1
fi
mkdir -p "$where"
npm install --prefix "$where" --no-package-lock --no-audit --no-fund --silent --ignore-scripts \
    @anthropic-ai/claude-code@2.1.197 @openai/codex@0.171.0 @qwen-code/qwen-code@0.15.10 \
    openai@6.49.0 @anthropic-ai/sdk@1.14.0
(cd "$where/node_modules/@anthropic-ai/claude-code" && node install.cjs)
"${PYTHON:-python3}" -m venv "$where/python"
"$where/python/bin/pip" install --quiet agentic-api==0.9.0
touch "$where/.installed"
