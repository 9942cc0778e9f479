"""Agents built with real frameworks, whose programs know nothing of Kairos but its URL."""

from contextlib import AsyncExitStack
from pathlib import Path

import opentelemetry.sdk.trace
import pytest

from kairos.core import WorkflowEnded
from kairos.settings import TelemetrySettings
from tests.frameworks import engine, flows
from tests.support.otlp import collecting
from tests.support.simulate.standin import Rule

CALL = "POST /v1/chat/completions"

pytestmark = pytest.mark.frameworks


@pytest.fixture
async def scripted():
    """`await scripted(SCRIPT)` is an engine that follows it."""
    async with AsyncExitStack() as stack:

        async def start(script, *, same_replies=True):
            return await stack.enter_async_context(engine.serve(script, same_replies=same_replies))

        yield start


@pytest.mark.parametrize("same_replies", [True, False], ids=["same replies", "own replies"])
@pytest.mark.parametrize("name", flows.WITH_SMOKE)
async def test_one_import_makes_every_graph_the_true_one(
    kairos, scripted, tmp_path, name, same_replies
):
    script = flows.script(name)
    standin = await scripted(script, same_replies=same_replies)
    served = await kairos(standin.url)

    marks = await flows.run(name, served.url, tmp_path, watched=True)

    found = await flows.found(served, engine.asked(standin, script))
    assert sorted(map(sorted, found.marks.values())) == sorted([mark] for mark in marks)
    for workflow_id in found.marks:
        calls = found.of_workflow(workflow_id)
        assert {call.id: call.agent for call in calls} == {
            call.id: found.agent[call.id] for call in calls
        }
        assert found.edges(calls) in flows.truth(name)
    assert sorted(found.ended) == sorted(found.marks)


@pytest.mark.parametrize("same_replies", [True, False], ids=["same replies", "own replies"])
@pytest.mark.parametrize("name", flows.NAMES)
async def test_without_it_no_two_runs_are_taken_for_one(
    kairos, scripted, tmp_path, name, same_replies
):
    script = flows.script(name)
    standin = await scripted(script, same_replies=same_replies)
    served = await kairos(standin.url)

    await flows.run(name, served.url, tmp_path, watched=False)

    found = await flows.found(served, engine.asked(standin, script))
    assert all(len(marks) <= 1 for marks in found.marks.values())
    by_name = {}
    for call in found.calls:
        by_name.setdefault(call.agent, set()).add(found.agent[call.id])
    by_name.pop(None, None)  # whose prompt is all in the user's words
    assert all(len(agents) == 1 for agents in by_name.values())


SNIPPETS_PAGE = (flows.ROOT / "docs" / "how-to" / "connect-agents.md").read_text()
SNIPPETS = {
    "langgraph": "LangGraph and LangChain",
    "openai_agents": "OpenAI Agents SDK",
    "crewai": "CrewAI",
    "pydantic_ai": "Pydantic AI",
    "autogen": "AutoGen",
    "llamaindex": "LlamaIndex",
    "agent_framework": "Microsoft Agent Framework",
    "google_adk": "Google ADK",
    "ag2": "AG2",
}


@pytest.mark.parametrize("name", SNIPPETS)
async def test_what_the_documentation_says_works(kairos, scripted, tmp_path, name):
    script = (Rule(system="You write.", agent="writer", replies=["Dark blue, like the sea."]),)
    standin = await scripted(script)
    served = await kairos(standin.url)
    snippet = (
        SNIPPETS_PAGE.split(f"\n## {SNIPPETS[name]}\n")[1].split("```python\n")[1].split("```")[0]
    )

    output = await flows.run_program(name, snippet, served.url, tmp_path)

    assert "Dark blue, like the sea." in output
    [call] = (await flows.found(served, engine.asked(standin, script))).calls
    assert call.agent == "writer"
    assert (await served.facts.seen(WorkflowEnded)).workflow_id == call.workflow_id


async def test_a_langgraph_run_and_what_kairos_did_for_it_are_one_tree_of_spans(
    kairos, scripted, tmp_path
):
    script = flows.script("langgraph")
    standin = await scripted(script)
    async with collecting() as collector:
        settings = TelemetrySettings(otlp_endpoint=collector.url)
        served = await kairos(standin.url, telemetry=settings)
        flow = flows.HERE / "langgraph" / "flow.py"
        question = "Why was the harbour given up in 1066? (case run-00000a)"
        program = f"import sys; sys.path.append({str(opentelemetry_in(tmp_path))!r}); {flows.RUN}"
        traced = flow.with_name("traced.py")
        arguments = (traced, collector.url, flow, question)
        await flows.run_program("langgraph", program, served.url, tmp_path, *arguments)
        calls = engine.asked(standin, script)
        await collector.until(lambda: collector.count(CALL) == len(calls))
    (root,) = (each for each in collector.spans if each.parent is None)
    assert root.name == "invoke_workflow report"
    agents = collector.children(root)
    assert {each.service for each in agents} == {"agents"}
    for agent in agents:
        own = collector.children(agent)
        assert own
        for call in own:
            assert collector.tree(call) == (CALL, ("queue",), ("chat tiny",))
            who = calls[call.attributes["kairos.request_id"]][0]
            assert agent.name == f"invoke_agent {who}"
            assert agent.began <= call.began <= agent.ended  # the client has its answer first
    assert sum(len(collector.children(each)) for each in agents) == len(calls)


def opentelemetry_in(directory):
    """OpenTelemetry of this environment, without the rest of it, for a program in another."""
    path = directory / "opentelemetry"
    path.mkdir()
    site = Path(opentelemetry.sdk.trace.__file__).parents[3]
    for each in [*site.glob("opentelemetry*"), site / "google"]:
        (path / each.name).symlink_to(each)
    return path
