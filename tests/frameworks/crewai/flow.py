"""A research desk: plan, gather from two sides at once, write, judge, publish or edit first."""

import sys
from concurrent.futures import ThreadPoolExecutor

from crewai import LLM, Agent, Crew, Task
from crewai.tasks.conditional_task import ConditionalTask
from crewai.tasks.task_output import TaskOutput
from crewai.tools import tool


@tool("search_archive")
def search_archive(topic: str) -> str:
    """Search the archive for notes on a topic."""
    return f"Archive: three notes mention {topic}."


def wants_edit(verdict: TaskOutput) -> bool:
    return "EDIT" in verdict.raw


def build_desk() -> Crew:
    llm = LLM(model="tiny", provider="openai")

    def agent(role: str, goal: str) -> Agent:
        return Agent(role=role, goal=goal, backstory=f"You are the {role}.", llm=llm)

    planner = agent("planner", "Split the question in two.")
    researcher = agent("researcher", "Search the archive.")
    skeptic = agent("skeptic", "Name the weak points.")
    writer = agent("writer", "Join what was found into an answer.")
    judge = agent("judge", "Say PUBLISH or EDIT.")
    editor = agent("editor", "Repair the answer.")
    publisher = agent("publisher", "Give the final text.")

    plan = Task(
        description="Plan how to answer: {question}", expected_output="A plan.", agent=planner
    )
    research = Task(
        description="Find facts on: {question}",
        expected_output="Facts.",
        agent=researcher,
        tools=[search_archive],
        context=[plan],
        async_execution=True,
    )
    doubt = Task(
        description="Find doubts on: {question}",
        expected_output="Doubts.",
        agent=skeptic,
        context=[plan],
        async_execution=True,
    )
    write = Task(
        description="Answer: {question}",
        expected_output="An answer.",
        agent=writer,
        context=[research, doubt],
    )
    judgement = Task(
        description="Judge the answer to: {question}",
        expected_output="A verdict.",
        agent=judge,
        context=[write],
    )
    edit = ConditionalTask(
        description="Repair the answer to: {question}",
        expected_output="A better answer.",
        agent=editor,
        condition=wants_edit,
    )
    publish = Task(
        description="Publish the answer to: {question}",
        expected_output="Final text.",
        agent=publisher,
    )
    return Crew(
        name="research_desk",
        agents=[planner, researcher, skeptic, writer, judge, editor, publisher],
        tasks=[plan, research, doubt, write, judgement, edit, publish],
    )


def answer(question: str) -> str:
    return build_desk().kickoff(inputs={"question": question}).raw


def main(questions: list[str]) -> None:
    with ThreadPoolExecutor(len(questions)) as pool:
        for question, text in zip(questions, pool.map(answer, questions), strict=True):
            print(f"{question} -> {text}")


if __name__ == "__main__":
    main(sys.argv[1:])
