"""Tests that take too long, in a process of their own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CONFTEST = """
import asyncio

import pytest
import uvloop

from tests.support.alarm import Alarm


def pytest_asyncio_loop_factories(config, item):
    return {"LOOP": asyncio.new_event_loop if "LOOP" == "asyncio" else uvloop.new_event_loop}


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item, settings):
    alarm = Alarm(item, settings.timeout, grace_s=GRACE)
    alarm.set()
    item.cancel_timeout = alarm.cancel
    return True
"""
WAITS = """
import asyncio, contextlib, subprocess, time

import pytest


@pytest.fixture
async def never():
    await asyncio.Event().wait()


async def a_neighbour():
    await asyncio.Event().wait()


async def test_that_waits():
    beside = asyncio.create_task(a_neighbour())
    await asyncio.Event().wait()


async def test_that_turns():
    while True:
        await asyncio.sleep(0.001)


async def test_whose_fixture_waits(never):
    pass


def test_that_sleeps():
    time.sleep(60)


def test_that_runs_a_loop():
    asyncio.run(asyncio.Event().wait())


async def test_that_swallows():
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def test_that_blocks():
    while True:
        with contextlib.suppress(BaseException):
            subprocess.run(["sleep", "60"])


@pytest.mark.timeout(60)
def test_that_is_well():
    pass
"""
LIMIT_S = 90  # of a process that is busy for a second, on a machine that has other work


def run(directory, loop, *names, grace_s=60):
    conftest = CONFTEST.replace("LOOP", loop).replace("GRACE", str(grace_s))
    (directory / "conftest.py").write_text(conftest)
    (directory / "test_waits.py").write_text(WAITS)
    options = ["-c", "/dev/null", "--rootdir", directory, "-o", "asyncio_mode=auto"]
    options += ["-o", "asyncio_default_fixture_loop_scope=function", "-p", "no:cacheprovider"]
    options += ["-p", "no:schemathesis", "--timeout=1"]
    tests = [f"test_waits.py::{each}" for each in (*names, "test_that_is_well")]
    process = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        check=False,
        cwd=directory,
        env={"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    return process.returncode, process.stdout


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_tests_that_take_too_long_fail_alone_and_what_else_waited_is_said(tmp_path, loop):
    names = (
        "test_that_waits",
        "test_that_turns",
        "test_whose_fixture_waits",
        "test_that_sleeps",
        "test_that_runs_a_loop",
    )
    status, said = run(tmp_path, loop, *names)
    assert status == 1, said
    assert len(re.findall("^E  .*: took longer than 1 s$", said, re.MULTILINE)) == len(names), said
    assert "4 failed, 1 passed, 1 error" in said, said
    assert "in a_neighbour" in said


@pytest.mark.parametrize("name", ["test_that_swallows", "test_that_blocks"])
def test_one_that_goes_on_ends_all_and_its_name_is_the_last_word(tmp_path, name):
    status, said = run(tmp_path, "uvloop", name, grace_s=0.3)
    assert status == 1
    assert said.splitlines()[-1].startswith("TIMEOUT: test_waits.py::" + name), said
