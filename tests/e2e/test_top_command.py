"""`kairos top` before a running Kairos."""

import asyncio
import os
import pty

from tests.e2e.client import LIMIT_S
from tests.e2e.gateway.test_page import asking
from tests.e2e.served import serving
from tests.e2e.test_health_command import run
from tests.e2e.test_roles import keys
from tests.support.host import forked


async def test_it_shows_instances_and_the_queue_in_its_order(kairos, engine, unused_port):
    nowhere = f"http://127.0.0.1:{unused_port}"
    served = await kairos(engine.url, nowhere, joins=1, max_num_seqs=1, kv_tokens=10_000)
    engine.answer = engine.when_released
    calls = await asking(served, 3, App="shop", Agent="agent-{n}", **{"Workflow-Id": "w{n}"})
    status, said = await run("top", served.service.admin_url)
    lines = said.splitlines()
    assert status == 0
    assert lines[0].startswith("waiting 2   running 1   open workflows 3")
    [line] = [each for each in lines if each.startswith(engine.url.removeprefix("http://"))]
    assert "in use" in line
    assert "1/1" in line
    assert "of 10,000" in line
    assert any("nothing answers there" in each for each in lines)
    order = [each.request.workflow_id for each in served.balancer.queued(2)]
    assert [each.split()[1] for each in lines[-2:]] == order
    assert lines[-1].split()[2:5] == ["shop", "/", f"agent-{order[-1][1]}"]
    engine.release(3)
    await asyncio.gather(*calls)


async def test_on_a_terminal_it_goes_on_and_says_when_what_it_shows_is_old(engine):
    """Until it is interrupted."""
    ours, theirs = pty.openpty()
    async with serving(engine.url) as served:
        command = ["kairos.cli.main", "top", served.service.admin_url]
        process = await forked.start(
            *command, "--interval", "0.2", fresh=True, stdin=theirs, stdout=theirs, stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
        )  # fmt: skip
        os.close(theirs)
        os.set_blocking(ours, False)
        screen = bytearray()

        async def until(said):
            async with asyncio.timeout(LIMIT_S):
                while said not in screen:
                    try:
                        screen.extend(os.read(ours, 65536))
                    except BlockingIOError:
                        await asyncio.sleep(0.02)

        await until(b"waiting 0")
        await served.chat()
        await until(b"finished 1")
    await until(b"what is shown is old")
    process.send_signal(2)
    async with asyncio.timeout(LIMIT_S):
        assert await process.wait() == 130
    os.close(ours)


async def test_what_is_no_kairos_or_lets_nobody_in_is_said(kairos, engine, unused_port):
    served = await kairos(engine.url, key=keys("viewer"))
    url = served.service.admin_url
    status, said = await run("top", url)
    assert (status, "answered 401" in said) == (1, True)
    assert (await run("top", url, "--api-key-env", "MINE", MINE="viewer"))[0] == 0
    for wrong, reason in (
        (f"http://127.0.0.1:{unused_port}", "refused"),
        ("nonsense", "is not a URL"),
        (engine.url, "is not the operators' port of a Kairos"),
    ):
        status, said = await run("top", wrong)
        assert status == 1
        assert reason in said
