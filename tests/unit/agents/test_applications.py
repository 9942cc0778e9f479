"""The three applications on a bus in memory, with a model whose words are scripted."""

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents import cg, qa, rg
from kairos.agent import Application, read_result, run, submit
from kairos.cluster import MemoryBus
from kairos.core import Message, Topic

TIMEOUT_S = 60


class ScriptedLLM:
    """Says what the script has for the agent: a text for every call, or a text for each."""

    def __init__(self, **script: str | list[str]) -> None:
        self.script = {
            agent: says if isinstance(says, str) else [*says] for agent, says in script.items()
        }
        self.calls: list[tuple[dict, Mapping[str, str]]] = []

    async def complete(self, body, headers):
        self.calls.append((body, headers))
        says = self.script.get(headers["X-Kairos-Agent"], "Fine.")
        text = says if isinstance(says, str) else says.pop(0)
        return {"choices": [{"message": {"content": text}}]}

    @property
    def steps(self) -> list[str]:
        return [f"{h['X-Kairos-Upstream']}->{h['X-Kairos-Agent']}" for _, h in self.calls]

    def prompts(self, agent: str) -> list[str]:
        return [b["messages"][1]["content"] for b, h in self.calls if h["X-Kairos-Agent"] == agent]


async def ask(app: Application, llm: ScriptedLLM, value: dict) -> dict:
    """Run one workflow to its end; return its result."""
    bus, ended = MemoryBus(), asyncio.get_running_loop().create_future()

    async def take(message: Message) -> None:
        ended.set_result(read_result(message))

    jobs = [
        asyncio.create_task(run([app], bus, llm)),
        asyncio.create_task(bus.consume(Topic.RESULTS, "user", take)),
    ]
    try:
        workflow_id = await submit(bus, app, value, now_us=7)
        result = await asyncio.wait_for(ended, TIMEOUT_S)
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
    assert result.workflow_id == workflow_id
    for _, headers in llm.calls:
        assert headers["X-Kairos-Workflow-Id"] == workflow_id
        assert headers["X-Kairos-App"] == result.app == app.name
        assert headers["X-Kairos-Started-At"] == "7"
    return result.value


class TestQA:
    @pytest.mark.parametrize("verdict", ["", "To solve this", "mathematics or humanities"])
    @pytest.mark.parametrize(
        ("question", "expert"),
        [
            ("What is 3 * 4?", "mathematics"),
            ("How many apples are left?", "mathematics"),
            ("Who ruled France from 1643 to 1715?", "humanities"),
        ],
    )
    def test_where_the_router_names_no_one_field_the_question_decides(
        self, verdict, question, expert
    ):
        assert qa.expert_for(verdict, question) == expert

    @given(st.text(), st.text())
    def test_whatever_is_said_there_is_an_expert(self, verdict, question):
        assert qa.expert_for(verdict, question) in qa.app.agents

    async def test_a_task_without_a_question_ends_with_an_error(self):
        result = await ask(qa.app, ScriptedLLM(), {"question": "?"})
        assert "no text 'text'" in result["error"]


class TestCG:
    @pytest.mark.parametrize(
        ("said", "code"),
        [
            ("Sure:\n```python\nx = 1\n```\nbye", "x = 1\n"),
            ("```py\nx = 1\n```", "x = 1\n"),
            ("```\nx = 1\n```\n```\ny = 2\n```", "x = 1\n"),
            ("```python\nx = 1\ncut of", "x = 1\ncut of"),
            ("The code:\ndef f():\n    return 1", "def f():\n    return 1"),
            (
                "From math:\nfrom math import pi\ndef f(): pass",
                "from math import pi\ndef f(): pass",
            ),
            ("no code", "no code"),
        ],
    )
    def test_code_is_found_in_what_the_model_says(self, said, code):
        assert cg.extract_code(said) == code

    @given(st.text(alphabet="`python\n def:x", max_size=200))
    def test_code_found_is_part_of_what_was_said(self, said):
        assert cg.extract_code(said) in said


@pytest.mark.parametrize("app", [qa.app, rg.app, cg.app], ids=lambda app: app.name)
class TestBudgets:
    async def test_with_the_longest_of_everything_a_call_fits_into_2048_tokens(self, app):
        """At three characters a token, which is fewer than the model makes of English or code."""
        llm = ScriptedLLM(**dict.fromkeys(app.agents, "```python\n" + "x = 12345\n" * 2_000))
        value = {"text": "t" * 100_000, "tests": "assert False, 'z' * 10_000"}
        await ask(app, llm, value)
        for body, _ in llm.calls:
            characters = sum(len(message["content"]) for message in body["messages"])
            assert characters / 3 + body["max_tokens"] <= 2_048
