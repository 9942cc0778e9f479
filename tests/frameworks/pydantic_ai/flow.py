"""A report by six agents: python flow.py "question one" "question two" """

import asyncio
import sys
from dataclasses import dataclass

from pydantic_ai import Agent, RunContext
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_graph import GraphBuilder, StepContext, reduce_list_append

model = OpenAIChatModel("tiny")

triage = Agent(model, name="triage", instructions="You are the triage. Is this easy or contested?")
advocate = Agent(model, name="advocate", instructions="You are the advocate. Speak for it.")
skeptic = Agent(model, name="skeptic", instructions="You are the skeptic. Speak against it.")
writer = Agent(
    model, name="writer", instructions="You are the writer. Have the facts checked, then write."
)
checker = Agent(model, name="checker", instructions="You are the checker. Find what is wrong.")
editor = Agent(model, name="editor", instructions="You are the editor. Make it shorter.")


@skeptic.tool_plain
def look_up(topic: str) -> str:
    """Looks a topic up in the encyclopedia."""
    return f"{topic}: see volume 7, page 11."


@writer.tool
async def check_facts(context: RunContext, text: str) -> str:
    """Checks the facts of a text."""
    return (await checker.run(text, usage=context.usage)).output


@dataclass
class State:
    question: str


@dataclass
class Contested:
    answer: str


@dataclass
class Easy:
    answer: str


graph_builder = GraphBuilder(name="report", state_type=State, output_type=str)
step = graph_builder.step


@step
async def sort_out(context: StepContext[State, None, None]) -> Contested | Easy:
    answer = (await triage.run(f"Question: {context.state.question}")).output
    return Contested(answer) if "contested" in answer.lower() else Easy(answer)


@step
async def speak_for(context: StepContext[State, None, Contested]) -> str:
    prompt = f"Question: {context.state.question}\nAnswer: {context.inputs.answer}"
    return (await advocate.run(prompt)).output


@step
async def speak_against(context: StepContext[State, None, Contested]) -> str:
    prompt = f"Question: {context.state.question}\nAnswer: {context.inputs.answer}"
    return (await skeptic.run(prompt)).output


@step
async def conclude(context: StepContext[State, None, list[str]]) -> str:
    heard = "\n".join(context.inputs)
    async with writer.run_stream(f"Question: {context.state.question}\n{heard}") as report:
        return await report.get_output()


@step
async def shorten(context: StepContext[State, None, Easy]) -> str:
    prompt = f"Question: {context.state.question}\nReport: {context.inputs.answer}"
    return (await editor.run(prompt)).output


heard = graph_builder.join(reduce_list_append, initial_factory=list[str])
graph_builder.add(
    graph_builder.edge_from(graph_builder.start_node).to(sort_out),
    graph_builder.edge_from(sort_out).to(
        graph_builder.decision()
        .branch(graph_builder.match(Contested).to(speak_for, speak_against))
        .branch(graph_builder.match(Easy).to(shorten))
    ),
    graph_builder.edge_from(speak_for, speak_against).to(heard),
    graph_builder.edge_from(heard).to(conclude),
    graph_builder.edge_from(conclude, shorten).to(graph_builder.end_node),
)
report = graph_builder.build()


async def main(questions: list[str]) -> None:
    texts = await asyncio.gather(*(report.run(state=State(question)) for question in questions))
    for question, text in zip(questions, texts, strict=True):
        print(f"{question} -> {text}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
