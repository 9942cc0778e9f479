"""A batch outlives its gateway: `kairos serve` is killed amid it, and started again."""

import asyncio
import os
import signal

import aiohttp

from tests.e2e.batch_files import begin, client_of, ended, lines_of, read
from tests.e2e.test_workers import children
from tests.support.processes import Process

LINES = 500


def settings(directory, engine_url, **given):
    path = directory / "kairos.toml"
    told = {"port": 0, "admin_port": 0, **given}
    lines = [f"{name} = {value}" for name, value in told.items()]
    lines += ["[[engine]]", f'url = "{engine_url}"', "max_num_seqs = 4", "[batches]"]
    lines += [f'directory = "{directory / "batches"}"']
    path.write_text("\n".join(lines))
    return path


async def url_of(serve):
    await serve.until_it_says("serving on")
    return serve.said.split("serving on ")[1].split("/v1")[0]


async def some_are_done(client, batch, lines):
    async with asyncio.timeout(60):
        while (await client.batches.retrieve(batch.id)).request_counts.completed < lines:
            await asyncio.sleep(0.01)


async def check(client, batch, lines=LINES):
    """0 lost, 0 twice."""
    assert batch.status == "completed"
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (lines, lines, 0)
    answered = await read(client, batch.output_file_id)
    assert [each["custom_id"] for each in answered] == [f"doc-{n}" for n in range(lines)]


async def shown(url, line):
    """In /metrics, which another process than the workers answers."""
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while line not in await (await session.get(f"{url}/metrics")).text():
            await asyncio.sleep(0.1)


async def test_a_batch_of_500_lines_ends_through_kill_9_of_the_gateway(standin, tmp_path):
    path = settings(tmp_path, standin.url)
    serve = Process(tmp_path, "serve", "serve", "--config", path)
    with serve:
        async with client_of(await url_of(serve)) as client:
            batch = await begin(client, lines_of(LINES))
            await some_are_done(client, batch, LINES // 4)
        serve.kill()
        serve.start()
        async with client_of(await url_of(serve)) as client:
            assert (await client.batches.retrieve(batch.id)).status == "in_progress"
            await some_are_done(client, batch, LINES // 2)
        serve.kill()
        serve.start()
        async with client_of(await url_of(serve)) as client:
            await check(client, await ended(client, batch))


async def test_with_workers_one_of_them_drives_and_another_takes_over_when_it_is_killed(
    standin, tmp_path
):
    serve = Process(
        tmp_path, "serve", "serve", "--config", settings(tmp_path, standin.url, workers=2)
    )
    with serve:
        url = await url_of(serve)
        async with client_of(url) as client:
            batch = await begin(client, lines_of(LINES))
            await some_are_done(client, batch, LINES // 4)
        driver = int((tmp_path / "batches" / "lock").read_text())
        _, *workers = children(serve.pid)
        assert driver in workers
        os.kill(driver, signal.SIGKILL)
        async with client_of(url, max_retries=10) as client:
            await check(client, await ended(client, batch))
        await shown(url, f'kairos_batch_lines_total{{state="completed"}} {LINES}.0')
        assert int((tmp_path / "batches" / "lock").read_text()) != driver
