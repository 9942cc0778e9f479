"""The process that finds out what Kairos gained: one, bounded, and told of as it is."""

import asyncio
import os
from pathlib import Path

import pytest

from kairos.gateway import Gains
from kairos.gateway.page import gains as module
from kairos.gateway.page.gains import FRESH_US
from kairos.settings import Settings

LIMIT_S = 60


@pytest.fixture
async def gains(tmp_path):
    """Of a log that there is not, or of a directory."""
    running = []

    def made(directory=tmp_path / "none"):
        found = Gains(Settings(log_dir=None if directory is None else str(directory)))
        running.append(asyncio.create_task(found.run()))
        return found

    yield made
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def until(condition):
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def test_why_it_failed_is_told_and_it_may_be_asked_again(gains):
    found = gains()
    assert found.view().state == "idle"
    found.start(0)
    assert found.view().state == "running"
    await until(lambda: found.view().state != "running")
    assert found.view().state == "failed"
    assert "there is no directory" in found.view().problem
    found.start(0)
    assert (found.view().state, found.view().problem) == ("running", None)


async def test_it_runs_in_what_is_left_over_and_knows_no_secret(gains, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "facts-000001.jsonl")  # it waits for what nobody writes
    monkeypatch.setenv("ENGINE_KEY", "secret")
    found = gains(tmp_path)
    found.start(0)
    await until(lambda: found._beside.pid is not None)
    pid = found._beside.pid
    assert os.sched_getscheduler(pid) == os.SCHED_IDLE
    await until(lambda: b"gained" in Path(f"/proc/{pid}/cmdline").read_bytes())
    assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert b"KEY" not in Path(f"/proc/{pid}/environ").read_bytes()
    found.start(0)  # asked twice, one runs
    assert found._beside.pid == pid
    found.stop()
    await until(lambda: found._beside.pid is None)
    assert (found.view().state, found.view().problem) == ("idle", None)


async def test_with_the_service_it_ends(gains, tmp_path):
    os.mkfifo(tmp_path / "facts-000001.jsonl")
    found = Gains(Settings(log_dir=str(tmp_path)))
    task = asyncio.create_task(found.run())
    found.start(0)
    await until(lambda: found._beside.pid is not None)
    process = found._beside._process
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert process.returncode is not None


async def test_one_that_takes_too_long_is_ended(gains, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "facts-000001.jsonl")
    monkeypatch.setattr(module, "LIMIT_S", 0.2)
    found = gains(tmp_path)
    found.start(0)
    await until(lambda: found.view().state == "failed")
    assert "took longer" in found.view().problem
    assert found._beside.pid is None


def test_what_was_found_is_good_for_a_while():
    found = Gains(Settings(log_dir="somewhere"))
    found._found_at = 1_000
    found.start(FRESH_US)
    assert found.view().state != "running"
    found.start(FRESH_US + 1_000)
    assert found.view().state == "running"


def test_without_a_log_nothing_is_begun():
    found = Gains(Settings())
    found.start(0)
    assert found.view().state == "no_log"
