"""CG, a workflow with feedback: five roles write a function, and its tests decide.

The engineer's code really runs, in a sandbox. While it fails it goes back to the engineer with the
QA engineer's review, in at most three rounds.
"""

import re
from typing import Annotated

import msgspec

from agents.evaluation import check_layers, evaluate
from kairos.agent import Application, Task
from kairos.core import InvalidRequest

ROUNDS = 3
TASK_LIMIT = 1_200  # characters, about 300 tokens
NOTE_LIMIT = 400  # of each role's words
CODE_LIMIT = 1_600

app = Application("cg", entry="product_manager")

_PRODUCT_MANAGER = """You are a product manager. Say in two sentences what the function must do for
its user."""
_ARCHITECT = """You are a software architect. Name the steps of the algorithm, one short line
each."""
_PROJECT_MANAGER = """You are a project manager. List the cases that the code must handle, one short
line each."""
_ENGINEER = """You are a Python engineer. Write the complete function. Reply with one python code
block and nothing else."""
_QA_ENGINEER = """You are a QA engineer. Say in one or two sentences what to change in the code, or
that it is right."""

_FENCE = re.compile(r"```[ \t]*(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_CODE_BEGINS = re.compile(r"^(?:def |async def |class |import |from \w+ import |@)", re.MULTILINE)


class Work(msgspec.Struct, frozen=True):
    """What the roles hand on; other fields of the task go along untouched."""

    text: str
    tests: str
    entry_point: str | None = None
    requirements: str = ""
    design: str = ""
    plan: str = ""
    code: str = ""
    feedback: str = ""
    round: Annotated[int, msgspec.Meta(ge=1, le=ROUNDS)] = 1

    @property
    def task(self) -> str:
        return f"Task: {self.text[:TASK_LIMIT]}"


def _work(task: Task) -> Work:
    try:
        return msgspec.convert(task.value, Work)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"this is no programming task: {error}") from error


@app.agent("product_manager")
async def product_manager(task: Task) -> None:
    requirements = await task.complete(_PRODUCT_MANAGER, _work(task).task, max_tokens=60)
    await task.send("architect", task.value | {"requirements": requirements[:NOTE_LIMIT]})


@app.agent("architect")
async def architect(task: Task) -> None:
    work = _work(task)
    prompt = f"{work.task}\nRequirements: {work.requirements}"
    design = await task.complete(_ARCHITECT, prompt, max_tokens=80)
    await task.send("project_manager", task.value | {"design": design[:NOTE_LIMIT]})


@app.agent("project_manager")
async def project_manager(task: Task) -> None:
    work = _work(task)
    plan = await task.complete(
        _PROJECT_MANAGER, f"{work.task}\nDesign: {work.design}", max_tokens=60
    )
    await task.send("engineer", task.value | {"plan": plan[:NOTE_LIMIT]})


@app.agent("engineer")
async def engineer(task: Task) -> None:
    work = _work(task)
    parts = [work.task, f"Steps: {work.design}", f"Cases: {work.plan}"]
    if work.entry_point:
        parts.append(f"The function's name is {work.entry_point}.")
    if work.feedback:
        parts += [f"Your last code:\n{work.code}", f"It failed. {work.feedback}"]
    said = await task.complete(_ENGINEER, "\n".join(parts), max_tokens=160)
    await task.send("qa_engineer", task.value | {"code": extract_code(said)[:CODE_LIMIT]})


@app.agent("qa_engineer", check=check_layers)
async def qa_engineer(task: Task) -> None:
    work = _work(task)
    evaluation = await evaluate(work.code, work.tests)
    outcome = "It passed its tests." if evaluation.passed else f"It failed: {evaluation.reason}"
    prompt = f"{work.task}\nCode:\n{work.code}\n{outcome[:NOTE_LIMIT]}"
    review = (await task.complete(_QA_ENGINEER, prompt, max_tokens=50))[:NOTE_LIMIT]
    if not evaluation.passed and work.round < ROUNDS:
        again = {"feedback": f"{outcome[:NOTE_LIMIT]}\n{review}", "round": work.round + 1}
        await task.send("engineer", task.value | again)
        return
    result = {
        "passed": evaluation.passed,
        "rounds": work.round,
        "evaluation": evaluation.reason,
        "review": review,
        "code": work.code,
    }
    if evaluation.missing_layers:
        result["unprotected"] = evaluation.missing_layers
    await task.finish(result)


def extract_code(said: str) -> str:
    """The code in a model's answer: the first fenced block, else all from where code begins."""
    if fenced := _FENCE.search(said):
        return fenced[1]
    if begins := _CODE_BEGINS.search(said):
        return said[begins.start() :]
    return said
