"""The acceptance run in parts: what is too long for the gate, and when it is due.

`python -m quality.acceptance run PART` runs one part and adds its result to
`docs/quality/acceptance.jsonl`; `due` lists the parts whose code has changed since their last
passing record; `list` shows them all. A part takes at most 40 minutes on two cores. A record that
was made with uncommitted changes shows a result, but does not make its part any less due.
"""

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from quality import records
from quality.records import Record, changed_files, git

LIMIT_MINUTES = 40

BRAIN = (
    "kairos/core/balancer.py",
    "kairos/core/admission.py",
    "kairos/core/dispatching.py",
    "kairos/core/runtime.py",
    "kairos/core/dispatcher",
    "kairos/core/scheduler",
    "kairos/core/orchestrator",
    "kairos/core/faults",
)
HTTP = ("kairos/service.py", "kairos/gateway", "kairos/request", "kairos/proxy", "kairos/engines")
BUS = (
    "kairos/cluster/bus",
    "kairos/cluster/kafka",
    "kairos/cluster/pool",
    "kairos/cluster/orchestrate",
    "kairos/agents/runtime.py",
    "kairos/agents/process.py",
    "kairos/core/topics.py",
)
FLOWS = (
    "kairos/workflows/declare",
    "kairos/workflows/compile",
    "kairos/workflows/execute",
    "kairos/workflows/imports",
    "kairos/workflows/serve",
    "kairos/workflows/run",
    "kairos/workflows/start",
    "kairos/workflows/retrieve",
    "kairos/proxy/llm",
)
BATCHES = ("kairos/batches",)
PLANNING = ("kairos/simulate", "kairos/capacity")
ENGINES = ("kairos/engines", "kairos/proxy", "kairos/simulate/standin", "kairos/cli/demos")


@dataclass(frozen=True)
class Part:
    """Commands of a part, the code whose change makes it due, and its usual minutes."""

    what: str
    commands: tuple[tuple[str, ...], ...]
    code: tuple[str, ...]
    minutes: int


def _make(*targets: str) -> tuple[tuple[str, ...], ...]:
    return tuple(("make", *target.split()) for target in targets)


PARTS = {
    "agents": Part(
        "Claude Code and Codex, with keys, tools and sub-agents",
        _make("acceptance-agents"),
        ("kairos/request", "kairos/proxy", "kairos/gateway", "tests/acceptance"),
        5,
    ),
    "attacks": Part(
        "what large, wrong and fast requests do to the event loop, to memory, and to others",
        _make("acceptance-attacks"),
        (*HTTP, "kairos/workflows/serve", "kairos/host", "tests/attacks"),
        20,
    ),
    "batches": Part(
        "a batch of 10,000 lines through kills of every process it passes through",
        _make("acceptance-batches"),
        (*BATCHES, *BUS, "kairos/cluster/workers", "tests/acceptance"),
        25,
    ),
    "bench": Part(
        "what calls, decisions, learning and Kafka cost, and the tables of the documentation",
        _make("bench", "bench-tables", "bench-fresh"),
        ("bench", "kairos", "client"),
        40,
    ),
    "browser": Part(
        "every test of the page in Chromium",
        _make("test-browser"),
        ("kairos/gateway/page", "kairos/gateway", "tests/e2e/gateway/test_page.py"),
        5,
    ),
    "containers": Part(
        "generated code attacks its machine from a real container",
        _make("acceptance-containers"),
        ("agents", "deploy", "tests/attacks/found"),
        1,
    ),
    "experiments": Part(
        "every claim on a reduced grid, on simulated pools",
        _make("experiments"),
        ("experiments", *BRAIN, *PLANNING),
        15,
    ),
    "floors": Part(
        "the HTTP ports with the lowest versions of packages that are allowed",
        _make("test-floors"),
        ("kairos/gateway", "kairos/request", "pyproject.toml", "requirements-floors.lock"),
        4,
    ),
    "flows": Part(
        "declared workflows on real vLLM: a thousand documents through ten kills, plans, gains",
        _make("acceptance-flows"),
        (*FLOWS, "tests/acceptance"),
        35,
    ),
    "frameworks": Part(
        "agents of nine real frameworks",
        _make("test-frameworks"),
        ("client", "kairos/request", "kairos/core/orchestrator", "tests/frameworks"),
        12,
    ),
    "fuzz": Part(
        "random input to every parser, guided by coverage, a minute each",
        _make("fuzz SECONDS=60"),
        (
            "kairos/request",
            "kairos/proxy",
            "kairos/workflows/declare",
            "kairos/workflows/imports",
            "tests/fuzz",
        ),
        20,
    ),
    "http": Part(
        "the HTTP server and client against llhttp and h11, 100,000 cases each, and behind proxies",
        _make("test-http"),
        ("kairos/gateway", "kairos/proxy", "tests/conformance", "tests/e2e/test_http_proxies.py"),
        3,
    ),
    "kafka": Part(
        "everything on a real Kafka: crashes of brokers, members, workers and agents",
        _make("test-kafka"),
        (*BUS, *BATCHES, "kairos/workflows/run", "kairos/observe", "tests/contract"),
        25,
    ),
    "laws": Part(
        "laws on freshly drawn examples, on the brain's source and compiled",
        _make("test-laws"),
        (*BRAIN, *FLOWS, *PLANNING, "tests/property", "tests/laws"),
        30,
    ),
    "long": Part(
        "tests that need no service but more time than the gate has",
        _make("test-long"),
        ("kairos", "client", "bench", "experiments", "tests"),
        20,
    ),
    "mutants": Part(
        "120 drawn mutants of the product against the gate's tests",
        _make("mutants"),
        ("kairos", "tests"),
        40,
    ),
    "overload": Part(
        "twice the load that two engines bear, for five minutes",
        _make("acceptance-overload"),
        (*BRAIN, *HTTP, "tests/acceptance"),
        10,
    ),
    "ray": Part(
        "runs on a real Ray and a real PostgreSQL: tables as in one process, kills, no database",
        _make("test-ray"),
        (*FLOWS, "kairos/workflows/ray", "tests/ray", "requirements-ray.lock"),
        30,
    ),
    "real": Part(
        "everything on real llama.cpp servers",
        _make("test-real"),
        (*ENGINES, *FLOWS, "examples"),
        6,
    ),
    "restarts": Part(
        "two real vLLM under load, one of them killed and restarted in each of four cycles",
        _make("acceptance-restarts"),
        (*HTTP, "kairos/core/faults", "tests/acceptance", "tests/faults"),
        30,
    ),
    "rows": Part(
        "example flows over 10,000 rows with bad ones of every kind, against the good ones alone",
        _make("acceptance-rows"),
        (*FLOWS, "examples", "tests/acceptance/bad_rows.py", "tests/acceptance/test_bad_rows.py"),
        25,
    ),
    "sanitizers": Part(
        "random input to both C sources under AddressSanitizer and UBSan, half an hour",
        _make("acceptance-sanitizers"),
        ("kairos/request/reading.c", "kairos/core/dispatcher/forecast.c", "tests/fuzz"),
        35,
    ),
    "soak": Part(
        "two minutes, then twenty, of load before engines that crash, hang and answer wrongly",
        _make("test-soak", "soak SECONDS=1200"),
        (*BRAIN, *HTTP, "kairos/simulate/standin", "tests/soak"),
        26,
    ),
    "vllm": Part(
        "everything on real vLLM on the CPU, the check of the engine model included",
        _make("test-vllm"),
        (*ENGINES, *FLOWS, "kairos/simulate", "tests/e2e/test_vllm.py"),
        20,
    ),
    "vllm-experiments": Part(
        "experiments on real vLLM in their short forms",
        _make("acceptance-experiments"),
        ("experiments", "kairos/core/dispatcher", "kairos/simulate/engine"),
        20,
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="quality.acceptance", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="all parts, with their last records")
    commands.add_parser("due", help="the parts whose code has changed since they passed")
    run = commands.add_parser("run", help="run parts, one after the other, and record each")
    run.add_argument("parts", nargs="+", metavar="PART", help=f"due, or any of {' '.join(PARTS)}")
    chosen = parser.parse_args()
    if chosen.command == "run":
        return _run(chosen.parts)
    for name, part in PARTS.items():
        why = reason(name, records.ACCEPTANCE)
        if why or chosen.command == "list":
            print(f"{name:17} {part.minutes:3} min  {part.what}: {why or 'passed'}")
    return 0


def reason(name: str, path: Path) -> str:
    """Return why a part is due, in a few words; "" where its code is the code that passed."""
    of_part = [each for each in records.read(path) if each["part"] == name]
    if not of_part:
        return "never run"
    last = _last_pass(of_part)
    if last is None:
        return f"has not passed: {of_part[-1]['result']} on {of_part[-1]['at'][:10]}"
    code = PARTS[name].code
    try:
        changed = git("diff", "--name-only", last["commit"], "--", *code).splitlines()
    except subprocess.CalledProcessError:
        return "passed on a commit that is not here"
    changed = [*changed, *(line[3:] for line in changed_files(code) if line.startswith("??"))]
    if not changed:
        return ""
    return f"{len(changed)} files changed since {last['at'][:10]}, such as {changed[0]}"


def _last_pass(found: list[Record]) -> Record | None:
    passed = [each for each in found if each["result"] == "passed" and not each["changed"]]
    return passed[-1] if passed else None


def _run(names: list[str]) -> int:
    unknown = [name for name in names if name not in PARTS and name != "due"]
    if unknown:
        print(f"no part {unknown[0]}: {', '.join(PARTS)}, or due", file=sys.stderr)
        return 2
    if "due" in names:
        names = [name for name in PARTS if reason(name, records.ACCEPTANCE)]
    results = {name: _run_part(name, PARTS[name]) for name in names}
    for name, result in results.items():
        print(f"acceptance: {name} {result}")
    return 0 if set(results.values()) <= {"passed"} else 1


def _run_part(name: str, part: Part) -> str:
    print(f"acceptance: {name}, about {part.minutes} minutes: {part.what}", flush=True)
    changed = bool(changed_files())  # before commands of the part write what they make
    started, result, failed = time.monotonic(), "passed", ""
    # A service that is missing is a failure here, as it is in CI.
    environment = {**os.environ, "CI": "true"}
    for command in part.commands:
        done = subprocess.run(command, cwd=records.ROOT, env=environment, check=False)
        if done.returncode:
            result, failed = "failed", " ".join(command)
            break
    seconds = round(time.monotonic() - started)
    more = {"failed": failed} if failed else {}
    values = {"part": name, "seconds": seconds, "result": result, "changed": changed, **more}
    records.append(records.ACCEPTANCE, **values)
    if seconds > LIMIT_MINUTES * 60:
        print(f"acceptance: {name} took {seconds // 60} minutes, more than {LIMIT_MINUTES}")
    return result


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("acceptance: stopped; the part that was running is not recorded")
