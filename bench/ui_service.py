"""`python -m bench.ui_service ENGINE_PORT ADMIN_PORT WORKFLOWS WAITING`: a Kairos that is full, for
`bench.ui` to look at.

Workflows are open, of one call each that its client gave up; the last of them wait, behind a call
that the engine never answers. They are told as facts: no client could hold so many calls open on a
machine that a browser shares.
"""

import asyncio
import sys

import aiohttp
import uvloop

from bench.upstream import HOST
from kairos.core import Arrived, Cancelled, Request
from kairos.host import collect_less_often
from kairos.service import Service, running
from kairos.settings import EngineSettings, Settings

_AT_ONCE = 500  # facts, until others have a turn
_MODEL = "bench"


async def serve(engine_port: int, admin_port: int, workflows: int, waiting: int) -> None:
    settings = Settings(
        engine=(EngineSettings(url=f"http://{HOST}:{engine_port}", max_num_seqs=1),),
        port=0,
        admin_port=admin_port,
        max_waiting=2 * waiting,
        caller_share=1.0,
    )
    async with running(settings) as service, aiohttp.ClientSession() as session:
        collect_less_often()
        while not service.brain.balancer.ledger.instances:
            await asyncio.sleep(0.05)
        held = asyncio.create_task(_held(session, service.url))
        while not len(service.brain.balancer.ledger):
            await asyncio.sleep(0.05)
        await _fill(service, workflows, waiting)
        await held


async def _held(session: aiohttp.ClientSession, url: str) -> None:
    body = {"model": _MODEL, "messages": [{"role": "user", "content": "Hello"}]}
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        await response.read()


async def _fill(service: Service, workflows: int, waiting: int) -> None:
    brain = service.brain
    for number in range(workflows):
        name = f"run-{number:06}"
        request = Request(
            id=f"{name}.1",
            workflow_id=name,
            app=f"app-{number % 20}",
            agent=f"agent-{number % 7}",
            model=None,
            workflow_started_at=brain.now(),
            arrived_at=brain.now(),
            prompt_tokens=100 + number % 900,
            completion_tokens=256,
        )
        brain.feed(Arrived(request))
        if number < workflows - waiting:
            brain.feed(Cancelled(request.id))
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)


if __name__ == "__main__":
    uvloop.run(serve(*map(int, sys.argv[1:])))
