"""`python -m tests.frameworks.table`: what is inferred of real frameworks' agents that say nothing.

Each flow runs ten times, two runs at once, half of the times with the same replies in all runs;
then the table that README.md has is printed. Of pairs of calls: which are taken to be of one agent,
and of one workflow; of edges of the graph: which are found. Takes ten minutes.
"""

import asyncio
import tempfile
from collections import Counter
from contextlib import asynccontextmanager
from itertools import combinations
from pathlib import Path

import aiohttp
from aiohttp import web

from kairos.config import EngineSettings, Settings
from kairos.live import service
from tests.frameworks import flows
from tests.frameworks.engine import Scripted

ROUNDS = 5
READY_S = 30
TITLES = {
    "ag2": "AG2",
    "agent_framework": "Agent Framework",
    "autogen": "AutoGen",
    "crewai": "CrewAI",
    "google_adk": "Google ADK",
    "langgraph": "LangGraph",
    "llamaindex": "LlamaIndex",
    "openai_agents": "OpenAI Agents SDK",
    "pydantic_ai": "Pydantic AI",
}


class Served:
    """As the tests have it: a URL, what was told, and a client."""

    def __init__(self, url, http):
        self.url, self._http, self.events = url, http, []
        self.facts = self

    def all(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    async def ask(self, method, path):
        async with self._http.request(method, self.url + path) as response:
            found = await response.json()
        return type("Answer", (), {"json": lambda _: found})()


@asynccontextmanager
async def serving(engine):
    runner = web.AppRunner(engine.app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    settings = Settings(port=0, admin_port=0, engine=(EngineSettings(url=url, max_num_seqs=64),))
    events = []
    async with (
        aiohttp.ClientSession() as http,
        service.running(settings, (lambda record: events.append(record.event),)) as running,
    ):
        async with asyncio.timeout(READY_S):
            while not running.monitor.models():
                await asyncio.sleep(0.05)
        served = Served(running.url, http)
        served.events = events
        yield served
    await runner.cleanup()


def compare(found, truth):
    """True positives, false positives and false negatives."""
    return Counter(right=len(found & truth), wrong=len(found - truth), missed=len(truth - found))


def pairs(calls, of):
    """Of calls that have the same of something."""
    known = [(call.id, of(call)) for call in calls]
    return {
        (one, other)
        for (one, first), (other, second) in combinations(known, 2)
        if first is not None and first == second
    }


def counted(name, found):
    """Calls in which no run's mark is left count nowhere but among agents."""
    marked = [call for calls in found.of_run.values() for call in calls]
    run_of = {call.id: mark for mark, calls in found.of_run.items() for call in calls}
    edges, truth = set(), set()
    for mark, calls in found.of_run.items():
        agents = {found.agent[call.id] for call in calls}
        known = max(flows.truth(name), key=lambda each: -len(agents ^ {a for e in each for a in e}))
        truth |= {(mark, *edge) for edge in known if set(edge) <= agents}
        edges |= {(mark, *edge) for edge in found.edges(calls)}
    return {
        "agents": compare(
            pairs(found.calls, lambda call: call.agent),
            pairs(found.calls, lambda call: found.agent[call.id]),
        ),
        "workflows": compare(
            pairs(marked, lambda call: call.workflow_id), pairs(marked, lambda c: run_of[c.id])
        ),
        "upstreams": compare(edges, truth),
    }


def shown(counts):
    found, true = counts["right"] + counts["wrong"], counts["right"] + counts["missed"]
    precision = f"{counts['right'] / found:.2f}" if found else "-"
    return f"{precision} / {counts['right'] / true:.2f}" if true else "-"


async def row(name):
    totals = {what: Counter() for what in ("agents", "workflows", "upstreams")}
    for number in range(2 * ROUNDS):
        engine = Scripted(flows.script(name), same_replies=number % 2 == 1)
        async with serving(engine) as served:
            with tempfile.TemporaryDirectory() as directory:
                await flows.run(name, served.url, Path(directory), watched=False)
            for what, counts in counted(name, await flows.found(served, engine)).items():
                totals[what] += counts
    return [TITLES[name], *(shown(each) for each in totals.values())]


async def main():
    print("| precision / recall | agents | workflows | upstreams |\n| - | - | - | - |", flush=True)
    for name in flows.NAMES:
        print(f"| {' | '.join(await row(name))} |", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
