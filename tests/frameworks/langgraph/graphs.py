"""Graphs as programs have them, which know nothing of Kairos: python graphs.py NAME ROWS

Prints what `invoke` returns of each row of a JSON list, as JSON.
"""

import asyncio
import json
import operator
import sys
from typing import Annotated, TypedDict

from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph

model = ChatOpenAI(model="tiny", temperature=0, max_tokens=64)


class Letter(TypedDict, total=False):
    complaint: str
    customer: str
    summary: Annotated[str, operator.add]
    draft: str
    letter: str


def letter() -> CompiledStateGraph:
    """One after the other, each a chain; a text that grows."""
    summarise = ChatPromptTemplate.from_messages(
        [
            ("system", "You summarise complaints, as JSON: {{complaint}} -> {{summary}}.\n"),
            ("human", "{complaint}"),
        ]
    )
    draft = ChatPromptTemplate.from_template("Answer {customer}, who says: {summary}\n")
    polish = ChatPromptTemplate.from_messages([("system", "Be polite."), ("human", "{draft}")])
    graph = StateGraph(Letter)
    graph.add_node("summarise", {"summary": summarise | model | StrOutputParser()})
    graph.add_node("draft", {"draft": draft | model | StrOutputParser()})
    graph.add_node(
        "polish", polish | model | StrOutputParser() | (lambda text: {"letter": text.upper()})
    )
    graph.add_edge(START, "summarise")
    graph.add_edge("summarise", "draft")
    graph.add_edge("draft", "polish")
    graph.add_edge("polish", END)
    return graph.compile()


class Review(TypedDict, total=False):
    paper: str
    pages: int
    blind: bool
    opinions: Annotated[list[str], operator.add]
    grounds: dict[str, object]
    verdict: str


def review() -> CompiledStateGraph:
    """Fan-out and fan-in, with a reducer, a function that asks a model itself, and JSON."""

    def referee(role: str) -> object:
        prompt = ChatPromptTemplate.from_messages(
            [
                ("system", f"You are the {role}."),
                ("human", "{paper} ({pages} pages, blind: {blind})"),
            ]
        )
        return prompt | model | StrOutputParser() | (lambda text: {"opinions": [text]})

    def statistician(state: Review) -> Review:
        found = model.invoke(f"Are the figures of {state['paper']} right?")
        return {"opinions": [found.text, f"{state['pages']} pages"]}

    ground = ChatPromptTemplate.from_template("JSON of {opinions}, with pages {pages}")
    decide = ChatPromptTemplate.from_messages(
        [("human", "{paper}"), ("ai", "I have read it."), ("human", "{opinions}\n{grounds}")]
    )
    graph = StateGraph(Review)
    graph.add_node("novelty", referee("expert"))
    graph.add_node("style", referee("editor"))
    graph.add_node("figures", statistician)
    graph.add_node("ground", {"grounds": ground | model | JsonOutputParser()})
    graph.add_node("decide", {"verdict": decide | model | StrOutputParser()})
    for each in ("style", "novelty", "figures"):
        graph.add_edge(START, each)
    graph.add_edge(["style", "novelty", "figures"], "ground")
    graph.add_edge("ground", "decide")
    graph.add_edge("decide", END)
    return graph.compile()


def grown(known: list[str], new: list[str]) -> list[str]:
    """In place, which is not forbidden."""
    known.extend(new)
    return known


class Search(TypedDict, total=False):
    question: str
    seen: Annotated[list[str], grown]
    context: str
    answer: str


def search() -> CompiledStateGraph:
    """Ways of unequal length, so that a node runs twice; a coroutine."""

    async def look_up(state: Search) -> Search:
        found = await model.ainvoke(f"What is known of {state['question']}?")
        return {"seen": [found.text]}

    def shorten(state: Search) -> Search:
        return {"seen": [state["seen"][-1][:8]]}

    def collect(state: Search) -> Search:
        return {"context": " / ".join(state.get("seen", [])), "seen": ["collected"]}

    answer = ChatPromptTemplate.from_template("{context}\n\n{question}")
    graph = StateGraph(Search)
    graph.add_node("look up", look_up)
    graph.add_node("shorten", shorten)
    graph.add_node("collect", collect)
    graph.add_node("answer", {"answer": answer | model | StrOutputParser()})
    graph.add_edge(START, "look up")
    graph.add_edge(START, "collect")
    graph.add_edge("look up", "shorten")
    graph.add_edge("shorten", "collect")
    graph.add_edge("collect", "answer")
    graph.add_edge("answer", END)
    return graph.compile()


GRAPHS = {"letter": letter, "review": review, "search": search}


async def main(name: str, rows: list[dict[str, object]]) -> list[object]:
    graph = GRAPHS[name]()
    if name == "search":  # it has coroutines
        return [await graph.ainvoke(row) for row in rows]
    return [graph.invoke(row) for row in rows]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))))
