"""A research desk: plan, gather from two sides at once, write, judge, publish or edit first."""

import asyncio
import sys
from typing import Annotated

from agent_framework import (
    Agent,
    AgentExecutorRequest,
    AgentExecutorResponse,
    Case,
    Default,
    Message,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    tool,
)
from agent_framework.openai import OpenAIChatCompletionClient


@tool(approval_mode="never_require")
def search_archive(topic: Annotated[str, "What the notes are about"]) -> str:
    """Search the archive for notes on a topic."""
    return f"Archive: three notes mention {topic}."


@executor(id="join")
async def join(
    found: list[AgentExecutorResponse], ctx: WorkflowContext[AgentExecutorRequest]
) -> None:
    question = found[0].full_conversation[0].text
    notes = "\n".join(each.agent_response.text for each in found)
    prompt = Message("user", [f"Answer: {question}\nWhat was found:\n{notes}"])
    await ctx.send_message(AgentExecutorRequest([prompt]))


def wants_edit(verdict: AgentExecutorResponse) -> bool:
    return "EDIT" in verdict.agent_response.text


def build_desk() -> Workflow:
    client = OpenAIChatCompletionClient("tiny")

    def agent(name: str, task: str, *tools) -> Agent:
        return Agent(client, f"You are the {name}. {task}", name=name, tools=tools)

    planner = agent("planner", "Split the question in two.")
    researcher = agent("researcher", "Search the archive.", search_archive)
    skeptic = agent("skeptic", "Name the weak points.")
    writer = agent("writer", "Join what was found into an answer.")
    judge = agent("judge", "Say PUBLISH or EDIT.")
    checker = agent("checker", "Find what is wrong.")
    check_facts = checker.as_tool(name="check_facts", description="Checks the facts of a text.")
    editor = agent("editor", "Have the facts checked, then repair the answer.", check_facts)
    publisher = agent("publisher", "Give the final text.")

    return (
        WorkflowBuilder(start_executor=planner, name="research_desk", output_from=[publisher])
        .add_fan_out_edges(planner, [researcher, skeptic])
        .add_fan_in_edges([researcher, skeptic], join)
        .add_edge(join, writer)
        .add_edge(writer, judge)
        .add_switch_case_edge_group(judge, [Case(wants_edit, editor), Default(publisher)])
        .add_edge(editor, publisher)
        .build()
    )


async def answer(question: str) -> str:
    result = await build_desk().run(question)
    return result.get_outputs()[0].text


async def main(questions: list[str]) -> None:
    answers = await asyncio.gather(*map(answer, questions))
    for question, text in zip(questions, answers, strict=True):
        print(f"{question} -> {text}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
