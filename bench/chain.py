"""Three agents in a row whose work takes a fixed time, so that their capacity is known:
`kairos agents run bench.chain`. `bench.overload` gives them more than that.
"""

import asyncio
import os

from kairos.agent import Application, Task

WORK_S = 0.1
NAME = "KAIROS_BENCH_APP"  # in the environment; so that runs on one Kafka do not meet

app = Application(os.environ.get(NAME, "bench"), entry="first")


@app.agent("first")
async def first(task: Task) -> None:
    await asyncio.sleep(WORK_S)
    await task.send("second", task.value)


@app.agent("second")
async def second(task: Task) -> None:
    await asyncio.sleep(WORK_S)
    await task.send("third", task.value)


@app.agent("third")
async def third(task: Task) -> None:
    await asyncio.sleep(WORK_S)
    await task.finish({})
