"""Run the largest example flows over tables with rows that are bad in every way.

These fail alone, each for its own reason, and change nothing about the others.
"""

import asyncio
import time
from contextlib import contextmanager

import pytest

from tests.acceptance import bad_rows
from tests.acceptance.bad_rows import FLOWS, FUNCTIONS, Table, expected, table
from tests.e2e.cli.flow_runs import ROOT, kairos_command, read_rows
from tests.support.ports import free_ports
from tests.support.processes import Process

ROWS, GATE_ROWS, SHARE = 10_000, 300, 0.02
SLOWER = 1.2
CUT = {"defaults: {on_cut: keep, ": "defaults: {", "defaults: {on_cut: keep}\n": ""}


@contextmanager
def engine(directory):
    (port,) = free_ports(1)
    module = "tests.acceptance.bad_rows"
    with Process(directory, "engine", str(port), module=module, fresh=True) as process:
        yield process, f"http://127.0.0.1:{port}"


def flow_of(name):
    """Return an example whose answers must be whole, as a flow's are unless it says otherwise."""
    text = (ROOT / "examples" / f"{name}.yaml").read_text()
    for old, new in CUT.items():
        text = text.replace(old, new)
    return text


async def run(directory, name, lines):
    """Return the exit status, the output, and the seconds."""
    directory.mkdir()
    (directory / "rows.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (directory / "flow.yaml").write_text(flow_of(name))
    (directory / "functions.py").write_text(FUNCTIONS)
    with engine(directory) as (process, url):
        await process.until_it_says("ready")
        words = ["run", "flow.yaml", "--inputs", "rows.jsonl", "--functions", "functions.py"]
        words += ["--out", "out.jsonl", "--no-cache", "--engine", url, "--embedder", url]
        began = time.monotonic()
        status, said = await kairos_command(directory, *words, "--reranker", url, fresh=True)
        return status, said, time.monotonic() - began


def without_numbers(path, left_out=frozenset()):
    """Return each row's bytes after its number, which rows before it change."""
    rows = [line.partition(b",") for line in path.read_bytes().splitlines()]
    return [rest for row, _, rest in rows if int(row.partition(b":")[2]) not in left_out]


async def compare(directory, name, rows, share, kinds=None):
    """Run with bad rows and without, at the same time; return the seconds of each.

    What else the machine does concerns both.
    """
    found = table(name, rows, share, kinds)
    good = [line for row, line in enumerate(found.lines) if row not in found.bad]
    runs = [run(directory / "all", name, found.lines), run(directory / "good", name, good)]
    (status, said, with_bad_s), (good_status, good_said, alone_s) = await asyncio.gather(*runs)
    assert status == 3, said
    assert good_status == 0, good_said
    check(directory, name, found)
    return with_bad_s, alone_s


def check(directory, name, found: Table):
    wanted = expected(name, found)
    errors = read_rows(directory / "all" / "out.errors.jsonl")
    failed = {each["row"]: (each["operator"], each["error"]) for each in errors}
    assert {row: found.bad.get(row) for row in failed.keys() ^ wanted.keys()} == {}
    for row, (operator, reason) in wanted.items():
        assert operator in ("", failed[row][0]), (found.bad[row], failed[row])
        assert reason in failed[row][1], (found.bad[row], failed[row])
    out = without_numbers(directory / "all" / "out.jsonl")
    assert len(out) == len(found.lines) - len(found.bad)
    assert out == without_numbers(directory / "good" / "out.jsonl")


@pytest.mark.parametrize("name", FLOWS)
async def test_bad_rows_fail_alone_each_for_its_own_reason(tmp_path, name):
    await compare(tmp_path, name, GATE_ROWS, SHARE, bad_rows.QUICK)


@pytest.mark.acceptance
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("name", FLOWS)
async def test_ten_thousand_rows_take_no_longer_for_the_bad_ones(tmp_path, name):
    with_bad_s, alone_s = await compare(tmp_path, name, ROWS, SHARE)
    print(f"{name}: {with_bad_s:.0f} s with bad rows, {alone_s:.0f} s without", flush=True)
    assert with_bad_s <= SLOWER * alone_s
