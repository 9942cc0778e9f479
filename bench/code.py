"""Which code a figure is of: the commit, and a hash of what is measured."""

import ast
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[1]

_CORE = (
    *("admission", "agent_key", "balancer", "dispatching", "call_row", "call_tracker"),
    *("declared_plan", "events", "learnt", "model", "open_work", "position"),
    *("refusals", "shared_lru", "workflow_tracker"),
)
_BRAIN = (
    *(f"core/{each}.py" for each in _CORE),
    *("core/dispatcher", "core/faults", "core/scheduler"),
)
_LEARNING = ("core/learner.py", "core/orchestrator")
# What a call passes through in the live service.
_CALL = (
    *("core/runtime.py", "host", "request", "proxy", "gateway", "engines"),
    *("observe", "cluster/local", "service.py"),
)
_FLOWS = ("workflows/declare", "workflows/compile", "workflows/execute")
_SERVICE = ("core", "settings", "host", "request", "observe", "proxy", "engines", "gateway")
# By the bench: what of `kairos/` its figures depend on, files and directories.
MEASURED: Mapping[str, tuple[str, ...]] = {
    "gateway": (*_BRAIN, *_LEARNING, *_CALL),
    "bus": (*_BRAIN, *_CALL, "agents", "cluster/bus", "cluster/kafka", "cluster/pool"),
    "ranks": ("core/learnt.py", "cluster/kafka"),
    "learning": (
        *("core/learner.py", "core/learnt.py", "core/position.py"),
        *("core/orchestrator", "core/scheduler"),
    ),
    "placement": (*_BRAIN,),
    "brain": (*_BRAIN, *_LEARNING),
    "identity": ("request/identity", "../client/kairos_client"),
    "simulation": (*_BRAIN, *_LEARNING, "simulate"),
    "fairness": (*_BRAIN, *_LEARNING, "simulate"),
    "poisoned": (*_BRAIN, *_LEARNING, *_CALL, "simulate"),
    "flows": _FLOWS,
    "flow_runs": (*_FLOWS, "workflows/run"),
    "health": (*_BRAIN, *_LEARNING, *_CALL),
    "startup": ("*.py", "cli", *_SERVICE, "batches", "workflows", "cluster"),
    "tls": (*_BRAIN, *_LEARNING, *_CALL, "settings/tls.py"),
    "ui": (*_BRAIN, *_LEARNING, *_CALL),
    "workers": (*_BRAIN, *_LEARNING, *_CALL, "cluster/workers"),
}
# Modules that no call passes through: engines as processes of their own.
_BESIDE = {f"kairos/engines/{name}.py" for name in ("llama", "vllm")}
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def code_of(bench: str) -> str:
    """A hash of what this bench measures. Comments and docstrings do not count."""
    return hash_of(files_of(bench))


def files_of(bench: str) -> list[Path]:
    package = ROOT / "kairos"
    found: set[Path] = set()
    for pattern in MEASURED[bench]:
        for path in package.glob(pattern):
            found |= {*path.rglob("*.py"), *path.rglob("*.c")} if path.is_dir() else {path}
    return sorted(each for each in found if str(each.relative_to(ROOT)) not in _BESIDE)


def hash_of(paths: Iterable[Path]) -> str:
    return digest_of(paths).hex()[:12]


def digest_of(paths: Iterable[Path]) -> bytes:
    digest = sha256()
    for path in paths:
        digest.update(f"{path.relative_to(ROOT)}\n{_decisive(path)}\n".encode())
    return digest.digest()


def _decisive(path: Path) -> str:
    """What runs: of Python no comment, no docstring."""
    if path.suffix != ".py":
        return path.read_text()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


def commit(directory: Path = ROOT, written: Sequence[str] = ()) -> str:
    """Of the code that runs; `+` when files that git tracks have changed since, but for those that
    measuring has `written`, paths from `directory`."""
    described = _git(directory, "describe", "--always", "--exclude=*", "--abbrev=12")
    excluded = [f":(exclude){path}" for path in written]
    changed = _git(directory, "diff", "--name-only", "HEAD", "--", ":/", *excluded).stdout
    return described.stdout.strip() + "+" * bool(changed) or "unknown"


def _git(directory: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = ["git", *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
