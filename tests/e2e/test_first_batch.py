"""A newcomer's first batch: the commands of the how-to, in its order, as they stand there."""

import asyncio
import os
import re
import signal
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from kairos.host import start_child
from tests.support.ports import free_ports
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "batches.md"
LIMIT_S = 100

pytestmark = pytest.mark.real


@pytest.fixture
def page():
    """The first part of it, on ports that are free."""
    engine, port = free_ports(2)
    text = PAGE.read_text().split("\n## A line")[0]
    return text.replace("8100", str(engine)).replace("8000", str(port)), port


def block(text, language):
    return re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)[1]


def command(text, part):
    """The one that has this in it, run by this Python."""
    [line] = [each for each in text.splitlines() if each.startswith(".venv/bin/") and part in each]
    program, *arguments = line.split()
    program = Path(sys.executable).with_name(Path(program).name)
    given = [ROOT / each if each.startswith("examples/") else each for each in arguments]
    return [str(each) for each in (program, *given)]


@asynccontextmanager
async def started(directory, given, port=0):
    """It runs in the directory until the block ends."""
    environ = {**os.environ, "KAIROS_PORT": str(port), "KAIROS_ADMIN_PORT": "0"}
    with (directory / "said").open("ab") as said:
        process = await start_child(
            *given, cwd=directory, env=environ, stdout=said, stderr=said, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def says(directory, text):
    await until(lambda: text in (directory / "said").read_text())


@pytest.mark.smoke
async def test_the_first_batch_of_the_how_to_runs_as_it_stands(page, tmp_path):
    text, port = page
    (tmp_path / "kairos.toml").write_text(block(text, "toml"))
    async with (
        started(tmp_path, command(text, "engines.llama")),
        started(tmp_path, command(text, "kairos serve"), port),
    ):
        await says(tmp_path, "serves smollm2-135m")
        async with (
            started(tmp_path, command(text, "first_batch")) as batch,
            asyncio.timeout(LIMIT_S),
        ):
            assert await batch.wait() == 0, (tmp_path / "said").read_text()
    said = (tmp_path / "said").read_text()
    assert "completed: 20 of 20" in said
    assert {f"colour-{number} |" in said for number in range(20)} == {True}
