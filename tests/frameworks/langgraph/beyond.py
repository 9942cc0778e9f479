"""Prints what is said of graphs and chains that a flow cannot say, or that go wrong in one."""

import json
import operator
import sys
from pathlib import Path
from typing import Annotated, TypedDict

from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, RetryPolicy, StreamWriter
from pydantic import BaseModel

sys.path.insert(0, str(Path(__file__).parent))

import flow as report

from kairos.core import KairosError
from kairos.workflows.imports.langchain import NotLifted, lifted
from kairos.workflows.imports.langgraph import GraphState, from_langgraph, written


class State(TypedDict, total=False):
    paper: str
    pages: int
    seen: Annotated[list[str], operator.add]


class Strict(BaseModel):
    paper: str


def nothing(state):
    return {}


def writing(state, writer: StreamWriter):
    return {}


def choose(state):
    return "b"


def chained(schema=State, first=nothing, **of_first):
    graph = StateGraph(schema)
    graph.add_node("a", first, **of_first)
    graph.add_node("b", nothing)
    graph.add_edge(START, "a")
    return graph


def with_(edges, **compiled):
    graph = chained()
    edges(graph)
    return graph.compile(**compiled)


def ab(graph):
    graph.add_edge("a", "b")


def circle(graph):
    ab(graph)
    graph.add_edge("b", "a")


GRAPHS = {
    "no path map": lambda: with_(lambda graph: graph.add_conditional_edges("a", choose)),
    "path map": lambda: with_(lambda graph: graph.add_conditional_edges("a", choose, ["b", END])),
    "command": report.build,
    "circle": lambda: with_(circle),
    "messages": lambda: chained(MessagesState).compile(),
    "pydantic": lambda: chained(Strict).compile(),
    "retries": lambda: chained(retry_policy=RetryPolicy()).compile(),
    "writer": lambda: chained(first=writing).compile(),
    "checkpointer": lambda: with_(ab, checkpointer=InMemorySaver()),
    "interrupt": lambda: with_(ab, interrupt_before=["b"]),
    "no graph": chained,
}

model = ChatOpenAI(model="tiny", temperature=0)
prompt = ChatPromptTemplate.from_template("{paper}")
CHAINS = {
    "temperature": prompt | ChatOpenAI(model="tiny") | StrOutputParser(),
    "tools": prompt | model.bind(stop=["x"]) | StrOutputParser(),
    "logprobs": prompt | ChatOpenAI(model="tiny", temperature=0, logprobs=True) | StrOutputParser(),
    "placeholder": ChatPromptTemplate([("placeholder", "{seen}")]) | model | StrOutputParser(),
    "format": ChatPromptTemplate.from_template("{pages:03d}") | model | StrOutputParser(),
    "jinja": ChatPromptTemplate.from_template("{{ paper }}", template_format="jinja2")
    | model
    | StrOutputParser(),
    "no parser": prompt | model,
    "function": model,
    "image": ChatPromptTemplate([HumanMessage([{"type": "text", "text": "x"}])])
    | model
    | StrOutputParser(),
    "name": ChatPromptTemplate([HumanMessage("x", name="mary")]) | model | StrOutputParser(),
}


def told(act):
    try:
        act()
    except (KairosError, NotLifted) as error:
        return str(error)
    except InvalidUpdateError as error:
        return type(error).__name__
    return None


def missing():
    graph = StateGraph(TypedDict("Other", {"paper": str}))
    two = ChatPromptTemplate.from_template("{paper} {pages}") | model | StrOutputParser()
    graph.add_node("a", {"paper": two})
    graph.add_edge(START, "a")
    from_langgraph(graph.compile())


refused = {name: told(lambda make=make: from_langgraph(make())) for name, make in GRAPHS.items()}
refused["purity"] = told(lambda: from_langgraph(with_(ab), purity={"z": "pure"}))
state = GraphState(with_(ab).builder.channels, ["paper"])
wrong = {
    "missing": told(missing),
    "two writers": told(
        lambda: state.values({}, [{"paper": "x"}, {"paper": "y"}], [[None, None]], ["paper"])
    ),
    "command": told(lambda: written("a", Command(goto="b"))),
    "set": told(lambda: written("a", {"seen": {"x"}})),
}
opaque = {name: told(lambda chain=chain: lifted(chain)) for name, chain in CHAINS.items()}
print(json.dumps({"refused": refused, "opaque": opaque, "wrong": wrong}))
