"""The audit log: what is written, how much at most, and what several processes do to one file."""

import fcntl
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kairos.core import SECOND, InvalidRequest, QueueFull, SetupError, Unauthorized, Unavailable
from kairos.observe import AuditLog, audit_log, count_errors, open_audit_log
from kairos.observe.audit_log import MOST_CALLERS, RotatedFile
from kairos.request import Caller, NotAllowed

NOW_S = 1_800_000_000
ANN = Caller("ops", name="ann")


class Logged:
    """A log at an instant that a test sets."""

    def __init__(self, path, **given):
        self.path, self.now_s = path, NOW_S
        self.log = AuditLog(RotatedFile(path, **given), lambda: int(self.now_s * SECOND))

    def lines(self):
        self.log.flush()
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def later(self, seconds=60):
        self.now_s += seconds
        return self.lines()


@pytest.fixture
def logged(tmp_path):
    made = Logged(tmp_path / "audit.jsonl")
    yield made
    made.log.close()


def test_what_an_operator_does_is_written_at_once(logged):
    logged.log.log_action(
        "POST /admin/instances", by=ANN, address="10.0.0.7", target="gpu3:8000", status=201
    )
    logged.log.log_action("reload", message="settings: no\nsuch thing")
    first, second = map(json.loads, logged.path.read_text().splitlines())
    assert first == {
        "at": "2027-01-15T08:00:00.000Z",
        "what": "POST /admin/instances",
        "tenant": "ops",
        "name": "ann",
        "address": "10.0.0.7",
        "target": "gpu3:8000",
        "status": 201,
    }
    assert second["message"] == "settings: no\nsuch thing"
    assert logged.path.stat().st_mode & 0o777 == 0o600


def test_a_refusal_has_a_line_and_the_next_of_the_same_are_counted(logged):
    for _ in range(1_000):
        logged.log.log_refusal(Unauthorized("no"), None, "10.0.0.7")
    logged.log.log_refusal(Unauthorized("no"), None, "10.0.0.8")
    logged.log.log_refusal(QueueFull(7), ANN, None)
    logged.log.log_refusal(NotAllowed("admin", ANN), None, "10.0.0.7", "operators")
    one = {"at": "2027-01-15T08:00:00.000Z", "what": "refused", "port": "callers"}
    first = [
        one | {"address": "10.0.0.7", "status": 401, "code": "invalid_api_key"},
        one | {"address": "10.0.0.8", "status": 401, "code": "invalid_api_key"},
        one | {"tenant": "ops", "name": "ann", "status": 429, "code": "queue_full"},
        one
        | {"port": "operators", "tenant": "ops", "name": "ann", "address": "10.0.0.7"}
        | {"status": 403, "code": "role_not_allowed"},
    ]
    assert logged.lines() == first
    assert logged.later(59) == first
    last = first[0] | {"at": "2027-01-15T08:01:00.000Z", "count": 999}
    assert logged.later(1) == [*first, last | {"since": "2027-01-15T08:00:00.000Z"}]
    logged.log.log_refusal(Unauthorized("no"), None, "10.0.0.7")  # another window
    assert len(logged.lines()) == 6


@pytest.mark.parametrize("error", [InvalidRequest("no"), Unavailable("no")])
def test_what_is_no_refusal_has_no_line(logged, error):
    logged.log.log_refusal(error, ANN, None)
    assert logged.later() == []


def test_a_flood_from_many_addresses_has_few_lines_and_hides_no_tenant(logged):
    for number in range(10_000):
        logged.log.log_refusal(Unauthorized("no"), None, f"10.1.{number // 256}.{number % 256}")
    logged.log.log_refusal(QueueFull(7), ANN, None)
    for number in range(1_000):
        logged.log.log_refusal(QueueFull(7), Caller(f"t{number}"), None)
    lines = logged.later()
    assert len(lines) == 2 * MOST_CALLERS + 2
    others = [line for line in lines if line.get("address") == "others"]
    counted = {line["code"]: line["count"] for line in others}
    assert counted == {"invalid_api_key": 10_000 - MOST_CALLERS, "queue_full": 1_001 - MOST_CALLERS}
    assert any(line.get("tenant") == "ops" for line in lines)
    assert len(logged.log._counts) == 0


def test_what_was_counted_is_told_when_it_is_closed(tmp_path):
    logged = Logged(tmp_path / "audit.jsonl")
    for _ in range(3):
        logged.log.log_refusal(Unauthorized("no"), None, "10.0.0.7")
    logged.log.close()
    counts = [json.loads(line).get("count", 1) for line in logged.path.read_text().splitlines()]
    assert counts == [1, 2]


def test_figures_are_counted_with_an_audit_log_and_without(logged):
    counted = []
    count_errors(counted.append, None)(Unauthorized("no"), None, "10.0.0.7")
    told = count_errors(counted.append, logged.log)
    told(Unauthorized("no"), None, "at 10.0.0.7")
    told(QueueFull(7), ANN, "ops")
    assert len(counted) == 3
    assert [(each.get("address"), each.get("tenant")) for each in logged.lines()] == [
        ("10.0.0.7", None),
        (None, "ops"),
    ]


def test_a_full_file_is_put_aside_and_the_oldest_goes(tmp_path):
    logged = Logged(tmp_path / "audit.jsonl", file_bytes=1_000, max_files=3)
    for number in range(60):
        logged.log.log_action("reload", target=f"{number:04}", message="x" * 100)
    files = sorted(each.name for each in tmp_path.iterdir())
    assert files == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    told = [
        json.loads(line)["target"]
        for name in reversed(files)
        for line in (tmp_path / name).read_text().splitlines()
    ]
    assert told == [f"{number:04}" for number in range(60 - len(told), 60)]
    assert all((tmp_path / name).stat().st_size <= 1_000 for name in files)
    assert all((tmp_path / name).stat().st_mode & 0o777 == 0o600 for name in files)


def test_a_file_that_another_program_renamed_is_begun_anew(logged):
    logged.log.log_action("one")
    logged.path.rename(logged.path.with_name("old"))
    logged.log.log_action("two")
    assert [each["what"] for each in logged.lines()] == ["two"]


def test_who_finds_that_another_has_put_the_file_aside_does_not_do_it_again(tmp_path):
    path = tmp_path / "audit.jsonl"
    one, other = RotatedFile(path), RotatedFile(path)
    one.append(b"first\n")
    for each in (one, other):  # both found it full
        each._rotate()
    other.append(b"second\n")
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {
        "audit.jsonl": "second\n",
        "audit.jsonl.1": "first\n",
    }
    for each in (one, other):
        each.close()


def others_wait_for_the_lock_of(path):
    """Return whether, by what the kernel says."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f":{path.stat().st_ino} " in line for line in lines)


def test_only_one_puts_the_file_aside_at_a_time(tmp_path):
    path = tmp_path / "audit.jsonl"
    file = RotatedFile(path)
    with path.open() as another, ThreadPoolExecutor() as threads:
        fcntl.flock(another, fcntl.LOCK_EX)
        rotating = threads.submit(file._rotate)
        while not others_wait_for_the_lock_of(path):
            time.sleep(0.01)
        assert not path.with_name("audit.jsonl.1").exists()
        fcntl.flock(another, fcntl.LOCK_UN)
        rotating.result(60)
    assert path.with_name("audit.jsonl.1").exists()
    file.close()


def test_several_processes_lose_no_line_and_tear_none(tmp_path):
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from kairos.observe.audit_log import RotatedFile\n"
        "file = RotatedFile(Path(sys.argv[1]), file_bytes=4_000, max_files=64)\n"
        "for number in range(500):\n"
        "    file.append(f'{sys.argv[2]} {number:04} {\"x\" * 40}\\n'.encode())\n"
    )
    path = tmp_path / "audit.jsonl"
    running = [
        subprocess.Popen([sys.executable, "-c", program, path, str(n)], env=dict(os.environ))
        for n in range(3)
    ]
    assert [each.wait(60) for each in running] == [0, 0, 0]
    lines = [line for each in tmp_path.iterdir() for line in each.read_text().splitlines()]
    assert sorted(lines) == sorted(f"{n} {m:04} {'x' * 40}" for n in range(3) for m in range(500))


def test_while_the_disk_takes_nothing_so_much_is_kept_and_both_are_said(
    logged, monkeypatch, caplog
):
    monkeypatch.setattr(audit_log, "_PENDING_BYTES", 1_000)

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(logged.log._file, "append", full)
        for number in range(50):
            logged.log.log_action("reload", target=str(number), message="x" * 100)
    kept = logged.lines()
    assert 3 < len(kept) < 10
    assert [each["target"] for each in kept] == [str(number) for number in range(len(kept))]
    assert caplog.messages == [
        "the audit log cannot be written: No space left on device",
        f"the audit log is written again; {50 - len(kept)} lines are lost",
    ]


@pytest.mark.parametrize(
    ("path", "problem"),
    [("none/audit.jsonl", "No such file"), (".", "Is a directory"), ("pipe", "")],
)
def test_a_file_that_cannot_be_written_is_said_at_the_start(tmp_path, path, problem):
    with (
        pytest.raises(SetupError, match=f"the audit log .* cannot be written: {problem}"),
        open_audit_log(str(tmp_path / path) if path != "pipe" else "/dev/null"),
    ):
        pass


def test_without_a_path_there_is_none():
    with open_audit_log(None) as log:
        assert log is None
