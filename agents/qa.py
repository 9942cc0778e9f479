"""QA, a workflow that branches: a router picks the expert who answers the user's question."""

import re

from kairos.agent import Application, Task

QUESTION_LIMIT = 1_200  # characters, about 300 tokens

app = Application("qa", entry="router")

_ROUTER = """You sort questions into two fields. Reply with one word: mathematics or humanities.
mathematics: numbers, amounts, prices, distances, calculation.
humanities: history, people, society, language, art."""
_MATHEMATICS = """You are a mathematics expert. Solve the problem in a few short steps, then write
the result as "Answer:" and a number."""
_HUMANITIES = """You are a humanities expert. Answer the question in one short paragraph, with the
most important facts first."""

_FIELDS = {"math": "mathematics", "human": "humanities"}
# How a sum is asked for in words; a number alone is not enough, since years are numbers too.
_CALCULATION = re.compile(
    r"\d ?[+*/=^] ?\d|\d - \d|how (many|much)|\bper\b|percent|\btimes\b|\bsum\b|average|perimeter"
    r"|\barea\b|\btotal\b|\bcosts?\b|calculate|solve|probability|equation|derivative|integral"
    r"|\bmean of\b|square root|divided|remainder"
)


@app.agent("router")
async def router(task: Task) -> None:
    question = task.text("text")[:QUESTION_LIMIT]
    verdict = await task.complete(_ROUTER, f"Question: {question}\nField:", max_tokens=6)
    await task.send(expert_for(verdict, question), task.value)


@app.agent("mathematics")
async def mathematics(task: Task) -> None:
    await _answer(task, _MATHEMATICS)


@app.agent("humanities")
async def humanities(task: Task) -> None:
    await _answer(task, _HUMANITIES)


def expert_for(verdict: str, question: str) -> str:
    """The expert that the router names; where it names none or both, the question decides."""
    named = [field for stem, field in _FIELDS.items() if stem in verdict.lower()]
    if len(named) == 1:
        return named[0]
    return "mathematics" if _CALCULATION.search(question.lower()) else "humanities"


async def _answer(task: Task, system: str) -> None:
    question = task.text("text")[:QUESTION_LIMIT]
    answer = await task.complete(system, question, max_tokens=120)
    await task.finish({"expert": task.envelope.agent, "answer": answer})
