"""`python -m tests.frameworks.table`: what is inferred of real frameworks' agents that say nothing.

Each flow runs ten times, two runs at once, half of the times with the same replies in all runs;
then the table that README.md has is printed. Of pairs of calls: which are taken to be of one agent,
and of one workflow; of edges of the graph: which are found. Takes ten minutes.
"""

import asyncio
import tempfile
from pathlib import Path

from experiments.inferred import Score, score_of_pairs, score_of_sets
from tests.e2e.served import serving
from tests.frameworks import engine, flows

ROUNDS = 5
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


def scores(name, found):
    """Calls in which no run's mark is left count nowhere but among agents."""
    edges, truth = set(), set()
    for mark, calls in found.of_run.items():
        agents = {found.agent[call.id] for call in calls}
        known = max(flows.truth(name), key=lambda each: -len(agents ^ {a for e in each for a in e}))
        truth |= {(mark, *edge) for edge in known if set(edge) <= agents}
        edges |= {(mark, *edge) for edge in found.edges(calls)}
    marked = ((call.workflow_id, mark) for mark, calls in found.of_run.items() for call in calls)
    return (
        score_of_pairs((call.agent, found.agent[call.id]) for call in found.calls),
        score_of_pairs(marked),
        score_of_sets(edges, truth),
    )


async def row(name):
    script = flows.script(name)
    totals = [Score()] * 3
    for number in range(2 * ROUNDS):
        async with (
            engine.serve(script, same_replies=number % 2 == 1) as standin,
            serving(standin.url) as served,
        ):
            with tempfile.TemporaryDirectory() as directory:
                await flows.run(name, served.url, Path(directory), watched=False)
            found = await flows.found(served, engine.asked(standin, script))
        of_round = scores(name, found)
        totals = [total.plus(each) for total, each in zip(totals, of_round, strict=True)]
    return [TITLES[name], *map(str, totals)]


async def main():
    print("| precision / recall | agents | workflows | upstreams |\n| - | - | - | - |", flush=True)
    for name in flows.NAMES:
        print(f"| {' | '.join(await row(name))} |", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
