"""A research desk: plan, gather from two sides at once, write, judge, publish or edit first."""

import asyncio
import os
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow
from autogen_ext.models.openai import OpenAIChatCompletionClient


def search_archive(topic: str) -> str:
    """Search the archive for notes on a topic."""
    return f"Archive: three notes mention {topic}."


def build_desk(client: OpenAIChatCompletionClient) -> GraphFlow:
    planner = AssistantAgent(
        "planner", client, system_message="You are the planner. Split the question in two."
    )
    researcher = AssistantAgent(
        "researcher",
        client,
        system_message="You are the researcher. Search the archive.",
        tools=[search_archive],
        reflect_on_tool_use=True,
    )
    skeptic = AssistantAgent(
        "skeptic", client, system_message="You are the skeptic. Name the weak points."
    )
    writer = AssistantAgent(
        "writer", client, system_message="You are the writer. Join what was found into an answer."
    )
    judge = AssistantAgent(
        "judge", client, system_message="You are the judge. Say PUBLISH or EDIT."
    )
    editor = AssistantAgent(
        "editor", client, system_message="You are the editor. Repair the answer."
    )
    publisher = AssistantAgent(
        "publisher", client, system_message="You are the publisher. Give the final text."
    )

    graph = DiGraphBuilder()
    for agent in (planner, researcher, skeptic, writer, judge, editor, publisher):
        graph.add_node(agent)
    graph.add_edge(planner, researcher).add_edge(planner, skeptic)
    graph.add_edge(researcher, writer).add_edge(skeptic, writer)
    graph.add_edge(writer, judge)
    graph.add_edge(judge, publisher, condition="PUBLISH", activation_group="approved")
    graph.add_edge(judge, editor, condition="EDIT")
    graph.add_edge(editor, publisher, activation_group="edited")
    return GraphFlow(participants=graph.get_participants(), graph=graph.build())


async def answer(client: OpenAIChatCompletionClient, question: str) -> str:
    result = await build_desk(client).run(task=question)
    return result.messages[-1].to_text()


async def main(questions: list[str]) -> None:
    client = OpenAIChatCompletionClient(
        model="tiny",
        base_url=os.environ["OPENAI_BASE_URL"],
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": True,
            "structured_output": True,
            "family": "unknown",
        },
    )
    answers = await asyncio.gather(*(answer(client, question) for question in questions))
    for question, text in zip(questions, answers, strict=True):
        print(f"{question} -> {text}")
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
