"""`python -m tests.fuzz.run SECONDS`: feeds each target what reaches more and more of its code.

Starts from the kept corpus and goes on from what earlier runs found, in `.fuzz/corpus`. What breaks
a target is kept in `.fuzz/crashes`: put into the kept corpus, it becomes a test.
"""

import re
import subprocess
import sys
from pathlib import Path

KEPT = Path(__file__).parent / "corpus"
FOUND, CRASHES = Path(".fuzz/corpus"), Path(".fuzz/crashes")
MAX_BYTES = 2_048  # of an input
SLOW_S = 5  # for one input
_REACHED = re.compile(r"^#\d+\s+DONE\s+cov: (\d+) ft: (\d+)", re.MULTILINE)
_EXECUTED = re.compile(r"^stat::number_of_executed_units: (\d+)", re.MULTILINE)


def main() -> None:
    seconds = int(sys.argv[1])
    CRASHES.mkdir(parents=True, exist_ok=True)
    failed = [each.name for each in sorted(KEPT.iterdir()) if not _passes(each.name, seconds)]
    if failed:
        sys.exit(f"broken: {', '.join(failed)}; the inputs are in {CRASHES}")


def _passes(target: str, seconds: int) -> bool:
    """Fuzzes one target and says what came of it."""
    (FOUND / target).mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={MAX_BYTES}",
        f"-timeout={SLOW_S}",
        f"-artifact_prefix={CRASHES}/{target}-",
        "-print_final_stats=1",
    ]
    command = [sys.executable, "-m", "tests.fuzz.one", target, *options, FOUND / target]
    done = subprocess.run([*command, KEPT / target], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    executed, reached = _EXECUTED.search(said), _REACHED.search(said)
    if done.returncode or not (executed and reached):
        raised = said[max(0, said.find("=== Uncaught Python exception")) :]
        print(f"{target:8} BROKEN\n{raised[:4_000]}", flush=True)
        return False
    edges, features = reached.groups()
    print(
        f"{target:8} {executed[1]:>9} executions in {seconds} s, {edges} edges, "
        f"{features} features, no crash",
        flush=True,
    )
    return True


if __name__ == "__main__":
    main()
