"""A research desk: plan, gather from two sides at once, write, judge, publish or edit first."""

import asyncio
import sys
from typing import Any

from google.adk import Agent, Event, Workflow
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.adk.workflow import START, JoinNode


def search_archive(topic: str) -> str:
    """Search the archive for notes on a topic."""
    return f"Archive: three notes mention {topic}."


def join_notes(node_input: dict[str, str]) -> str:
    return "What was found:\n" + "\n".join(node_input.values())


def choose(node_input: str) -> Event:
    return Event(output=node_input, route="edit" if "EDIT" in node_input else "publish")


def build_desk() -> Workflow:
    model = LiteLlm(model="openai/tiny")

    def agent(name: str, task: str, **more: Any) -> Agent:
        return Agent(name=name, model=model, instruction=f"You are the {name}. {task}", **more)

    planner = agent("planner", "Split the question in two.")
    researcher = agent("researcher", "Search the archive.", tools=[search_archive])
    skeptic = agent("skeptic", "Name the weak points.")
    writer = agent("writer", "Join what was found into an answer.")
    judge = agent("judge", "Say PUBLISH or EDIT.")
    checker = agent("checker", "Find what is wrong.", mode="single_turn")
    editor = agent(
        "editor", "Have the facts checked, then repair the answer.", sub_agents=[checker]
    )
    publisher = agent("publisher", "Give the final text.")
    found = JoinNode(name="found")

    return Workflow(
        name="research_desk",
        edges=[
            (START, planner, (researcher, skeptic), found, join_notes, writer, judge, choose),
            (choose, {"edit": editor, "publish": publisher}),
            (editor, publisher),
        ],
    )


async def answer(question: str) -> str:
    runner = InMemoryRunner(build_desk(), app_name="research_desk")
    events = await runner.run_debug(question, quiet=True)
    return "".join(part.text or "" for part in events[-1].content.parts)


async def main(questions: list[str]) -> None:
    answers = await asyncio.gather(*map(answer, questions))
    for question, text in zip(questions, answers, strict=True):
        print(f"{question} -> {text}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
