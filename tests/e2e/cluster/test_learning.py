"""What Kairos finds out of applications whose agents know nothing but their names."""

import asyncio

import aiohttp
import pytest

from agents import cg, qa, rg
from kairos import agent, service
from kairos.cluster import MemoryBus
from kairos.cluster.local import learning
from kairos.core import Arrived, ProfilesLearnt, Topic, WorkflowEnded
from kairos.proxy import HttpLLM
from kairos.settings import EngineSettings, Settings
from tests.e2e.client import LIMIT_S
from tests.support.simulate import standin as standins
from tests.support.simulate.standin import Rule, Script, Timing

RIGHT = ["```python\ndef f():\n    return 1\n```\n"]
WRONG = ["```python\ndef f():\n    return 2\n```\n"]
ENGINEER = "python engineer"
RULES = (
    Rule(system="sort questions", user=["how many"], replies=["mathematics "]),
    Rule(system="sort questions", replies=["humanities "]),
    Rule(system=ENGINEER, user=["hopeless"], replies=WRONG),
    Rule(system=ENGINEER, user=["easy", "it failed"], replies=RIGHT),
    Rule(system=ENGINEER, replies=WRONG),
)
TASKS = [
    *((qa.app, {"text": text}) for text in ("How many legs?", "Who wrote it?", "How many arms?")),
    *((rg.app, {"text": text}) for text in ("Rivers", "Bridges")),
    *((cg.app, {"text": t, "tests": "assert f() == 1"}) for t in ("easy", "usual", "hopeless")),
]
CG_PLAN = ["product_manager", "architect", "project_manager"]
CG_ROUND = ["engineer", "qa_engineer"]


class WithoutIds(HttpLLM):
    """A client that does not hand on which call led to which."""

    async def complete(self, body, headers):
        return await super().complete(
            body, {name: text for name, text in headers.items() if name != "X-Kairos-Parent-Id"}
        )


class User:
    """Gives tasks, and waits for their results."""

    def __init__(self, bus):
        self.bus, self.results, self._came = bus, {}, asyncio.Condition()

    async def take(self, message):
        result = agent.read_result(message)
        async with self._came:
            self.results[result.workflow_id] = result.value
            self._came.notify_all()

    async def all_results(self, number):
        async with asyncio.timeout(LIMIT_S), self._came:
            await self._came.wait_for(lambda: len(self.results) == number)
        return self.results


def true_path(app, result):
    """The agents that worked on a task, in order, as its result tells."""
    if app is qa.app:
        return ["router", result["expert"]]
    if app is rg.app:
        return ["researcher", "writer"]
    return CG_PLAN + CG_ROUND * result["rounds"]


def chain(graph):
    """The agents of a graph that is a chain, in order."""
    path, calls = [], graph.stages(None)
    while calls:
        ((call,),) = calls  # one stage of one call
        node = graph.nodes[call]
        path.append(node.span.agent)
        assert node.span.upstream == (path[-2] if len(path) > 1 else "user")
        assert (node.ambiguous, node.missing, node.attempts) == (False, (), 1)
        calls = graph.stages(call)
    assert len(path) == len(graph)
    return path


@pytest.fixture
async def fleet():
    """Two stand-ins that take their time, so that calls of different workflows overlap."""
    settings = standins.StandInSettings(model="tiny", max_num_seqs=2, timing=Timing(step_s=0.0005))
    async with (
        standins.serve(settings, Script(RULES)) as one,
        standins.serve(settings, Script(RULES)) as other,
    ):
        yield one.url, other.url


@pytest.mark.parametrize("client", [HttpLLM, WithoutIds], ids=["parents' ids", "names alone"])
async def test_the_graphs_of_three_applications_are_found_from_their_agents_names(
    kairos, fleet, client
):
    served, bus = await kairos(*fleet, max_num_seqs=2), MemoryBus()
    user = User(bus)
    async with client(f"{served.url}/v1", model="tiny") as llm:
        jobs = [
            asyncio.create_task(agent.run([qa.app, rg.app, cg.app], bus, llm)),
            asyncio.create_task(bus.consume(Topic.RESULTS, "test", user.take)),
        ]
        ids = [
            await agent.submit(bus, app, value, now_us=served.service.brain.now())
            for app, value in TASKS
        ]
        results = await user.all_results(len(TASKS))
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
    await served.settled()
    for workflow_id in ids:
        await served.ask("POST", f"/v1/workflows/{workflow_id}/end")
    found = served.service.brain.learner.orchestrator

    told = [fact.request.parent_ids for fact in served.facts.all(Arrived)]
    assert any(told) == (client is HttpLLM)
    assert [results[i]["rounds"] for i in ids[-3:]] == [1, 2, 3]
    for (app, _), workflow_id in zip(TASKS, ids, strict=True):
        graph = found.workflow("default", workflow_id).graph()
        assert chain(graph) == true_path(app, results[workflow_id]), workflow_id

    def known():
        return {(each.app, each.agent): each.samples for each in found.profiles.status("default")}

    await served.facts.until(lambda: known().get(("cg", "*")) == 15 + 6)
    assert known()["rg", "writer"] == 2
    assert known()["cg", "engineer"] == 1 + 2 + 3
    assert known()["qa", "*"] == 6


async def test_what_was_learnt_survives_a_restart(standin, tmp_path):
    settings = Settings(
        engine=(EngineSettings(url=standin.url),),
        port=0,
        admin_port=0,
        learnt_path=str(tmp_path / "learnt.json"),
    )
    published = []

    def follow(record):
        if isinstance(record.event, ProfilesLearnt):
            published.append(record.event)

    async with service.running(settings, (follow,)) as live:
        await live.monitor.all_joined.wait()
        async with aiohttp.ClientSession() as client:
            headers = {"X-Kairos-Workflow-Id": "w", "X-Kairos-App": "a", "X-Kairos-Agent": "b"}
            body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
            await client.post(f"{live.url}/v1/chat/completions", json=body, headers=headers)
            await client.post(f"{live.url}/v1/workflows/w/end")
        async with asyncio.timeout(LIMIT_S):
            while not published:
                await asyncio.sleep(0.05)
    before = live.brain.balancer.estimates.published(("default", "a", "b"))
    assert before[0].samples == 1

    async with service.running(settings) as live:
        assert live.brain.balancer.estimates.published(("default", "a", "b")) == before
        known = live.brain.learner.orchestrator.profiles.status("default")
        assert ("a", "b", 1) in {(each.app, each.agent, each.samples) for each in known}


async def test_a_workflow_that_falls_silent_is_learnt_though_nothing_more_happens(
    kairos, standin, monkeypatch
):
    monkeypatch.setattr(learning, "LEARN_S", 0.01)
    served = await kairos(standin.url, workflow_idle_s=1)
    names = {"X-Kairos-Workflow-Id": "w", "X-Kairos-App": "a", "X-Kairos-Agent": "b"}
    await served.chat(names)

    published = await served.facts.seen(ProfilesLearnt)
    assert ("a", "b") in {(each.app, each.agent) for each in published.profiles}
    await served.chat(names | {"X-Kairos-Workflow-Id": "v"})
    assert len(served.balancer.estimates.positions) == 1  # the first is forgotten there too


async def test_a_call_that_nothing_can_follow_from_is_a_workflow_and_ends_with_it(kairos, standin):
    served = await kairos(standin.url, infer=False)
    await served.chat()
    await served.chat(headers={"X-Kairos-Workflow-Id": "w", "X-Request-Id": "w"})

    [ended] = served.facts.all(WorkflowEnded)
    [alone, named] = served.facts.all(Arrived)
    assert ended.workflow_id == alone.request.id
    assert named.request.workflow_id == "w"


async def test_an_error_in_learning_is_told_and_serving_goes_on(kairos, standin, caplog):
    served = await kairos(standin.url, infer=False)
    learner = served.service.brain.learner
    study = learner.study

    def broken(ended):
        if ended:
            learner.study = study
            raise ValueError("a mistake")
        return []

    learner.study = broken
    await served.chat()
    while "are not learnt from: an error in Kairos" not in caplog.text:
        await asyncio.sleep(0.05)
    caplog.clear()  # no other error
    await served.chat()
    await served.facts.seen(ProfilesLearnt)
