"""A research desk: gather from two sides at once, plan, write, judge, publish or edit first."""

import asyncio
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from ag2 import Agent, tool
from ag2.config import OpenAIConfig
from ag2.knowledge import MemoryKnowledgeStore
from ag2.network import (
    EV_CHANNEL_CLOSED,
    EV_PACKET,
    WORKFLOW_TYPE,
    AgentTarget,
    Envelope,
    FromSpeaker,
    Hub,
    HubClient,
    LocalLink,
    Passport,
    TerminateTarget,
    Transition,
    TransitionGraph,
    WorkflowState,
    register_condition,
)

config = OpenAIConfig("tiny")


@tool
def search_archive(topic: str) -> str:
    """Search the archive for notes on a topic."""
    return f"Archive: three notes mention {topic}."


researcher = Agent(
    "researcher",
    "You are the researcher. Search the archive.",
    config=config,
    tools=[search_archive],
)
skeptic = Agent("skeptic", "You are the skeptic. Name the weak points.", config=config)


@tool
async def gather_notes(topic: str) -> str:
    """Gather what is known on a topic, and what could be wrong with it."""
    notes = await asyncio.gather(researcher.ask(topic), skeptic.ask(topic))
    return "\n".join(each.body or "" for each in notes)


@dataclass
class SaysEdit:
    """When an agent ends its turn with the word EDIT."""

    agent_id: str
    name: ClassVar[str] = "says_edit"

    def evaluate(self, state: WorkflowState, envelope: Envelope) -> bool:
        said = envelope.event_data.get("body", "") if envelope.event_type == EV_PACKET else ""
        return envelope.sender_id == self.agent_id and "EDIT" in said


register_condition(SaysEdit)


def staff() -> list[Agent]:
    def agent(name: str, task: str, **more: Any) -> Agent:
        return Agent(name, f"You are the {name}. {task}", config=config, **more)

    return [
        agent("planner", "Have notes gathered, then plan the answer.", tools=[gather_notes]),
        agent("writer", "Write the answer."),
        agent("judge", "Say PUBLISH or EDIT."),
        agent("editor", "Repair the answer."),
        agent("publisher", "Give the final text."),
    ]


async def answer(question: str) -> str:
    hub = await Hub.open(MemoryKnowledgeStore())
    link = LocalLink(hub)
    user = await HubClient(link).register_human(Passport("user"))
    ids = [(await HubClient(link).register(agent)).agent_id for agent in staff()]
    planner, writer, judge, editor, publisher = ids

    graph = TransitionGraph(
        user.agent_id,
        [
            Transition(FromSpeaker(user.agent_id), AgentTarget(planner)),
            Transition(FromSpeaker(planner), AgentTarget(writer)),
            Transition(FromSpeaker(writer), AgentTarget(judge)),
            Transition(SaysEdit(judge), AgentTarget(editor)),
            Transition(FromSpeaker(judge), AgentTarget(publisher)),
            Transition(FromSpeaker(editor), AgentTarget(publisher)),
            Transition(FromSpeaker(publisher), TerminateTarget()),
        ],
    )
    channel = await user.open(type=WORKFLOW_TYPE, target=ids, knobs={"graph": graph.to_dict()})
    await channel.send(question)
    await user.wait_for_channel_event(
        channel_id=channel.channel_id,
        predicate=lambda envelope: envelope.event_type == EV_CHANNEL_CLOSED,
    )
    said = await user.hub_client.read_wal(channel.channel_id)
    await hub.close()
    return next(each.event_data["body"] for each in reversed(said) if each.event_type == EV_PACKET)


async def main(questions: list[str]) -> None:
    answers = await asyncio.gather(*map(answer, questions))
    for question, text in zip(questions, answers, strict=True):
        print(f"{question} -> {text}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
