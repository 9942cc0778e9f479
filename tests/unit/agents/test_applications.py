"""The three applications on a bus in memory, with a model whose words are scripted."""

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents import cg, qa, rg
from agents.inputs import load
from kairos.agent import Application, read_result, run, submit
from kairos.live.bus.memory_bus import MemoryBus
from kairos.ports import Message
from kairos.topics import RESULTS

TIMEOUT_S = 60
RIGHT = "Here it is:\n```python\ndef double(n):\n    return 2 * n\n```\nDone."
WRONG = "```python\ndef double(n):\n    return n\n```"
CODE_TASK = {"text": "Double a number.", "entry_point": "double", "tests": "assert double(3) == 6"}


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
        asyncio.create_task(bus.consume(RESULTS, "user", take)),
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
    @pytest.mark.parametrize("expert", ["mathematics", "humanities"])
    async def test_the_router_sends_the_question_to_the_expert_it_names(self, expert):
        llm = ScriptedLLM(router=f" {expert.title()}.\n", **{expert: "42"})
        result = await ask(qa.app, llm, {"text": "What is it?", "answer": "43"})
        assert llm.steps == ["user->router", f"router->{expert}"]
        assert result == {"expert": expert, "answer": "42"}

    async def test_the_expert_sees_the_question_and_not_the_right_answer(self):
        llm = ScriptedLLM(router="humanities")
        await ask(qa.app, llm, {"text": "Who was it?", "answer": "Ada", "kind": "humanities"})
        assert llm.prompts("humanities") == ["Who was it?"]
        assert "Ada" not in str([body for body, _ in llm.calls])

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


class TestRG:
    async def test_the_writer_makes_a_report_of_the_researchers_notes(self):
        llm = ScriptedLLM(researcher="- tea is old", writer="Tea\n\nTea is old.")
        result = await ask(rg.app, llm, {"text": "Tea"})
        assert llm.steps == ["user->researcher", "researcher->writer"]
        assert llm.prompts("writer") == ["Topic: Tea\nNotes:\n- tea is old"]
        assert result == {"report": "Tea\n\nTea is old."}


DESIGN_STEPS = [
    "user->product_manager",
    "product_manager->architect",
    "architect->project_manager",
    "project_manager->engineer",
]


class TestCG:
    async def test_code_that_passes_its_tests_ends_in_the_first_round(self):
        llm = ScriptedLLM(engineer=RIGHT, qa_engineer="It is right.")
        result = await ask(cg.app, llm, CODE_TASK)
        assert llm.steps == [*DESIGN_STEPS, "engineer->qa_engineer"]
        result.pop("unprotected", None)
        assert result == {
            "passed": True,
            "rounds": 1,
            "evaluation": "passed",
            "review": "It is right.",
            "code": "def double(n):\n    return 2 * n\n",
        }

    async def test_code_that_fails_goes_back_to_the_engineer_with_what_was_wrong(self):
        llm = ScriptedLLM(engineer=[WRONG, RIGHT], qa_engineer="Multiply by two.")
        result = await ask(cg.app, llm, CODE_TASK)
        again = ["engineer->qa_engineer", "qa_engineer->engineer", "engineer->qa_engineer"]
        assert llm.steps == DESIGN_STEPS + again
        assert (result["passed"], result["rounds"]) == (True, 2)
        first, second = llm.prompts("engineer")
        assert "last code" not in first
        for told in ("def double(n):\n    return n", "assert double(3) == 6", "Multiply by two."):
            assert told in second

    async def test_the_third_round_is_the_last(self):
        llm = ScriptedLLM(engineer=WRONG)
        result = await ask(cg.app, llm, CODE_TASK)
        assert llm.steps.count("qa_engineer->engineer") == 2
        assert llm.steps.count("engineer->qa_engineer") == 3
        assert (result["passed"], result["rounds"]) == (False, 3)
        assert result["evaluation"] == "AssertionError in: assert double(3) == 6"

    async def test_each_role_sees_what_the_one_before_it_said(self):
        llm = ScriptedLLM(
            product_manager="P!", architect="A!", project_manager="M!", engineer=RIGHT
        )
        await ask(cg.app, llm, CODE_TASK)
        assert "P!" in llm.prompts("architect")[0]
        assert "A!" in llm.prompts("project_manager")[0]
        assert "A!" in llm.prompts("engineer")[0]
        assert "M!" in llm.prompts("engineer")[0]
        assert "It passed its tests." in llm.prompts("qa_engineer")[0]

    async def test_an_answer_without_code_is_a_failed_round_and_no_error(self):
        llm = ScriptedLLM(engineer=["I am sorry, I cannot.", RIGHT])
        result = await ask(cg.app, llm, CODE_TASK)
        assert (result["passed"], result["rounds"]) == (True, 2)

    @pytest.mark.parametrize(
        "value", [{}, {"text": "t"}, CODE_TASK | {"round": -9}, CODE_TASK | {"tests": 3}]
    )
    async def test_a_value_that_is_no_programming_task_ends_with_an_error(self, value):
        result = await ask(cg.app, ScriptedLLM(engineer=WRONG), value)
        assert "this is no programming task" in result["error"]

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

    async def test_the_built_in_inputs_are_tasks_of_the_application(self, app):
        for task in load(app.name)[:2]:
            value = {"text": task.text, "tests": task.tests or "", "entry_point": task.entry_point}
            assert "error" not in await ask(app, ScriptedLLM(engineer=WRONG), value)
