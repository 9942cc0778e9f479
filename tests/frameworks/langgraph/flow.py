"""A report by five agents: python flow.py "question one" "question two" """

import asyncio
import sys
from typing import Literal, TypedDict

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command

model = ChatOpenAI(model="tiny")


class State(TypedDict, total=False):
    question: str
    facts: str
    risks: str
    draft: str
    report: str


@tool
def look_up(topic: str) -> str:
    """Looks a topic up in the encyclopedia."""
    return f"{topic}: see volume 7, page 11."


research = create_agent(
    model, [look_up], system_prompt="You are the researcher. Collect facts.", name="researcher"
)


async def ask(system: str, user: str) -> str:
    reply = await model.ainvoke([("system", system), ("user", user)])
    return reply.text


async def planner(state: State) -> Command[Literal["researcher", "critic", "writer"]]:
    plan = await ask(
        "You are the planner. Say whether this needs research.", f"Question: {state['question']}"
    )
    return Command(goto=["researcher", "critic"] if "research" in plan.lower() else "writer")


async def researcher(state: State) -> State:
    result = await research.ainvoke(
        {"messages": [("user", f"Question: {state['question']}\nWhat is known?")]}
    )
    return {"facts": result["messages"][-1].text}


async def critic(state: State) -> State:
    prompt = f"Question: {state['question']}\nWhat is hard about it?"
    return {"risks": await ask("You are the critic. Name the risks.", prompt)}


def gather(state: State) -> State:
    return {"draft": f"Facts: {state.get('facts', '-')}\nRisks: {state.get('risks', '-')}"}


async def writer(state: State) -> State:
    prompt = f"Question: {state['question']}\n{state.get('draft', '')}"
    return {"report": await ask("You are the writer. Write the report.", prompt)}


async def reviewer(state: State) -> State:
    prompt = f"Question: {state['question']}\nReport: {state['report']}"
    return {"report": await ask("You are the reviewer. Correct the report.", prompt)}


def build() -> CompiledStateGraph:
    graph = StateGraph(State)
    graph.add_node("planner", planner)
    graph.add_node("researcher", researcher)
    graph.add_node("critic", critic)
    graph.add_node("gather", gather)
    graph.add_node("writer", writer)
    graph.add_node("reviewer", reviewer)
    graph.add_edge(START, "planner")
    graph.add_edge(["researcher", "critic"], "gather")
    graph.add_edge("gather", "writer")
    graph.add_edge("writer", "reviewer")
    graph.add_edge("reviewer", END)
    return graph.compile(name="report")


async def main(questions: list[str]) -> None:
    graph = build()
    for done in await asyncio.gather(*(graph.ainvoke({"question": q}) for q in questions)):
        print(f"{done['question']} -> {done['report']}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
