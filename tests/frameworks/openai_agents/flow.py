"""A report by six agents: python flow.py "question one" "question two" """

import asyncio
import sys

from agents import Agent, Runner, function_tool, trace


@function_tool
def look_up(topic: str) -> str:
    """Looks a topic up in the encyclopedia."""
    return f"{topic}: see volume 7, page 11."


historian = Agent(
    name="historian", instructions="You are the historian. Say how it came about.", model="tiny"
)
triage = Agent(
    name="triage",
    instructions="You are the triage. Hand over to the right expert.",
    handoffs=[historian],
    model="tiny",
)
advocate = Agent(
    name="advocate", instructions="You are the advocate. Say what speaks for it.", model="tiny"
)
skeptic = Agent(
    name="skeptic",
    instructions="You are the skeptic. Say what the encyclopedia has against it.",
    tools=[look_up],
    model="tiny",
)
checker = Agent(
    name="checker", instructions="You are the checker. Find what is wrong.", model="tiny"
)
writer = Agent(
    name="writer",
    instructions="You are the writer. Have the facts checked, then write the report.",
    tools=[checker.as_tool("check_facts", "Checks the facts of a text.")],
    model="tiny",
)
editor = Agent(
    name="editor", instructions="You are the editor. Make the report shorter.", model="tiny"
)


async def report(question: str) -> str:
    with trace("report"):
        answer = await Runner.run(triage, f"Question: {question}")
        thesis = f"Question: {question}\nAnswer: {answer.final_output}"
        pro, con = await asyncio.gather(Runner.run(advocate, thesis), Runner.run(skeptic, thesis))
        draft = Runner.run_streamed(
            writer, f"{thesis}\nPro: {pro.final_output}\nCon: {con.final_output}"
        )
        async for _ in draft.stream_events():
            pass
        if "too long" not in draft.final_output:
            return draft.final_output
        edited = await Runner.run(editor, f"Question: {question}\nReport: {draft.final_output}")
        return edited.final_output


async def main(questions: list[str]) -> None:
    texts = await asyncio.gather(*map(report, questions))
    for question, text in zip(questions, texts, strict=True):
        print(f"{question} -> {text}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
