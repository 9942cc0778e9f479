"""What one run of the gate cost: `python -m quality.gate FOLDER` prints it, from what the run left.

FOLDER has `steps.tsv` (name, seconds, result of each step, the whole run last, as `all`) and a file
of costs for each selection of tests (`tests/support/costs.py`). `--record` adds the steps to
`docs/quality/gate.jsonl`; a later run that is too long is compared with the last such record.
"""

import argparse
import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from quality import records

LIMIT_S = 25 * 60
TEST_CPU_S = 1000
ALL = "all"
GREW = 1.25  # times as long as recorded, and by more than
GREW_S = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="quality.gate", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--record", action="store_true", help="keep these seconds to compare with")
    chosen = parser.parse_args()
    with (chosen.folder / "steps.tsv").open() as file:
        steps = {name: int(seconds) for name, seconds, _ in csv.reader(file, delimiter="\t")}
    whole = steps.pop(ALL)
    print("\n".join([*told_steps(steps), *told_tests(chosen.folder), *told_whole(whole, steps)]))
    if chosen.record:
        records.append(records.GATE, kind="gate", seconds=whole, steps=steps)
    return 0


def told_steps(steps: Mapping[str, int]) -> list[str]:
    """Return lines with the seconds of each step, and the five longest."""
    lines = ["", "Seconds by step (some run at the same time):"]
    lines += [f"{seconds:6}  {name}" for name, seconds in steps.items()]
    longest = sorted(steps, key=lambda name: -steps[name])[:5]
    return [*lines, f"The five longest: {', '.join(longest)}"]


def told_tests(folder: Path) -> list[str]:
    """Return the CPU seconds of each selection of tests, and the 20 most expensive tests."""
    tests, lines = [], ["", "CPU seconds of tests, the processes that they start included:"]
    for path in sorted(folder.glob("*.jsonl")):
        of_step = [json.loads(line) for line in path.read_text().splitlines()]
        cpu = sum(each["own"] + each["started"] for each in of_step)
        lines.append(f"{cpu:6.0f}  {path.stem}: {len(of_step)} tests")
        if path.stem == "test" and cpu > TEST_CPU_S:
            lines.append(f"        above the {TEST_CPU_S} that `make test` may take")
        tests += of_step
    lines += ["", "The twenty most expensive tests (CPU seconds, wall seconds):"]
    tests.sort(key=lambda each: -(each["own"] + each["started"]))
    return lines + [
        f"{each['own'] + each['started']:6.1f} {each['wall']:6.1f}  {each['test']}"
        for each in tests[:20]
    ]


def told_whole(whole: int, steps: Mapping[str, int]) -> list[str]:
    """Return lines with the seconds of the run; above the limit, the steps that grew as well."""
    lines = ["", f"The gate took {whole // 60}:{whole % 60:02} of 25:00 minutes."]
    if whole <= LIMIT_S:
        return lines
    recorded = [each for each in records.read(records.GATE) if each["kind"] == "gate"]
    if not recorded:
        return [*lines, "TOO LONG; no earlier run is recorded to compare with."]
    last = recorded[-1]
    grew = [
        f"{name} {last['steps'].get(name, 0)} -> {seconds} s"
        for name, seconds in steps.items()
        if seconds > GREW * last["steps"].get(name, 0)
        and seconds - last["steps"].get(name, 0) > GREW_S
    ]
    where = f"since {last['at'][:10]} ({last['machine']})"
    if len(grew) > len(steps) / 2:
        return [*lines, f"TOO LONG; most steps grew {where}: this machine is slow. {grew}"]
    return [*lines, f"TOO LONG; steps that grew {where}: {', '.join(grew) or 'none'}"]


if __name__ == "__main__":
    sys.exit(main())
