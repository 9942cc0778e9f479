"""Every block of code in the documentation is one that works, as far as that can be seen without
engines: commands are parsed, Python is run, settings are read."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from kairos.batches.openapi import with_batches
from kairos.capacity.scaled_engines import read_scaling_file
from kairos.gateway.api.openapi import description
from kairos.settings import load_settings
from kairos.workflows.serve.openapi import with_flows
from tests.support.cli.command import app
from tests.support.workflows.declared import read_yaml
from tests.support.workflows.runs import compile_plan, read_host

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "client" / "README.md",
    ROOT / "deploy" / "README.md",
    ROOT / "experiments" / "README.md",
    ROOT / "traces" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
# Run with their real frameworks: tests/e2e/test_frameworks.py, test_client.py.
RUN_ELSEWHERE = {"connect-agents.md"}
PLAIN = {"text", "json", "jsonl"}
# Programs of others, of which nothing is checked but that we mean them.
OTHERS = {
    "sleep",
    "pip",
    "$KAIROS_VLLM/bin/python",
    "export",
    "docker",
    "python3",
    "python3.12",
    "~/vllm/bin/pip",
    "scp",
    "ssh",
    "tar",
    "cd",
    "openssl",
    "chmod",
    "vllm",
    "claude",
}
ADMIN = {
    "/admin/status",
    "/admin/scaling",
    "/admin/work",
    "/admin/instances",
    "/admin/instances/gpu3:8000",
}


def blocks(kind):
    """Each block of this kind, named by its page and line."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in BLOCK.finditer(text):
            if block[1] == kind and not (kind == "python" and page.name in RUN_ELSEWHERE):
                name = f"{page.relative_to(ROOT)}:{text[: block.start()].count(chr(10)) + 1}"
                found.append(pytest.param(block[2], id=name))
    return found


def commands(block):
    """Words of each command, without variables that are set for it and what it is piped into."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words:
            ends = [n for n, word in enumerate(words) if word in ("&&", "|", "&", ";", ">")]
            command, words = (words[: ends[0]], words[ends[0] + 1 :]) if ends else (words, [])
            while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
                command = command[1:]
            if command:
                yield command


def parse(words):
    """As the command line does; nothing is run."""
    command, name, context = typer.main.get_command(app), "kairos", None
    while True:
        context = command.make_context(name, list(words), parent=context)
        if not hasattr(command, "resolve_command"):
            return
        words = context._protected_args + context.args
        name, command, words = command.resolve_command(context, words)


def check(words):
    program = words[0].removeprefix(".venv/bin/")
    if program == "kairos":
        parse(words[1:])
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        for target in words[1:]:
            assert target in targets or "=" in target, target
    elif program in ("python", "bash", "sh") and words[1] != "-m":
        assert (ROOT / words[1]).exists(), words
    elif program == "python":
        assert importlib.util.find_spec(words[2]) is not None, words
    elif program == "pytest":
        assert all((ROOT / each).exists() for each in words[1:] if each.startswith("tests/"))
    elif program == "curl":
        [url] = (each for each in words if re.match(r"(https?://)?(127|localhost)", each))
        path = "/" + re.sub(r"^https?://", "", url).partition("/")[2]
        known = {
            re.sub(r"{[^}]*}", "[^/]+", each)
            for each in with_flows(with_batches(description()))["paths"]
        }
        assert path in ADMIN or any(re.fullmatch(each, path) for each in known), url
    else:
        assert program in OTHERS, f"is {program} a program that a reader has?"


def test_every_block_says_what_it_is():
    for page in PAGES:
        kinds = {found[1] for found in BLOCK.finditer(page.read_text())}
        assert kinds <= {"sh", "python", "toml", "yaml"} | PLAIN, page


@pytest.mark.parametrize("block", blocks("sh"))
def test_commands_are_understood(block):
    found = list(commands(block))
    assert found
    for words in found:
        check(words)


def test_what_is_wrong_is_found():
    for wrong in ("kairos serve --no-such-option", "make nothing-of-that-name", "tpyo x"):
        with pytest.raises((Exception, SystemExit)):
            test_commands_are_understood(wrong)


@pytest.mark.parametrize("block", blocks("python"))
def test_python_runs(block, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", block],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'client'}", "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", blocks("yaml"))
def test_flows_can_be_run(block):
    assert compile_plan(read_yaml(block)).outputs


@pytest.mark.parametrize("block", blocks("toml"))
def test_settings_are_read(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keys = tmp_path / "keys.toml"  # as `keys_path` names it
    keys.write_text(f'[[key]]\nsha256 = "{"1" * 64}"\ntenant = "operators"\nrole = "admin"\n')
    keys.chmod(0o600)
    if "[models." in block:
        path = tmp_path / "host.toml"
        path.write_text(block)
        assert read_host(path).models
        return
    if "[pool]" in block:
        path = tmp_path / "scaling.toml"
        path.write_text(block)
        assert read_scaling_file(path).pool.most > 1
        return
    path = tmp_path / "kairos.toml"
    path.write_text(block.replace('sha256 = "..."', f'sha256 = "{"0" * 64}"'))
    path.chmod(0o600)
    load_settings(path, {"GPU1_KEY": "x"}, {})
