"""A research desk: plan, gather from two sides at once, write, judge, publish or edit first."""

import asyncio
import os
import sys

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.llms import LLM
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step
from llama_index.llms.openai_like import OpenAILike


def search_archive(topic: str) -> str:
    """Search the archive for notes on a topic."""
    return f"Archive: three notes mention {topic}."


class Research(Event):
    plan: str


class Doubt(Event):
    plan: str


class Found(Event):
    text: str


class Rejected(Event):
    verdict: str


class Approved(Event):
    text: str


class Desk(Workflow):
    def __init__(self, llm: LLM, **kwargs: float) -> None:
        super().__init__(**kwargs)
        self.planner = FunctionAgent(
            name="planner", llm=llm, system_prompt="You are the planner. Split the question."
        )
        self.researcher = FunctionAgent(
            name="researcher",
            llm=llm,
            system_prompt="You are the researcher. Search the archive.",
            tools=[search_archive],
        )
        self.skeptic = FunctionAgent(
            name="skeptic", llm=llm, system_prompt="You are the skeptic. Name weak points."
        )
        writer = FunctionAgent(
            name="writer",
            description="Writes the answer.",
            llm=llm,
            system_prompt="You are the writer. Join what was found, then hand off to the judge.",
            can_handoff_to=["judge"],
        )
        judge = FunctionAgent(
            name="judge",
            description="Judges the answer.",
            llm=llm,
            system_prompt="You are the judge. Say PUBLISH or EDIT.",
            can_handoff_to=[],
        )
        self.newsroom = AgentWorkflow(agents=[writer, judge], root_agent="writer")
        self.llm = llm

    @step
    async def plan(self, ctx: Context, ev: StartEvent) -> Research | Doubt | None:
        await ctx.store.set("question", ev.question)
        plan = str(await self.planner.run(ev.question))
        ctx.send_event(Research(plan=plan))
        ctx.send_event(Doubt(plan=plan))
        return None

    @step
    async def research(self, ctx: Context, ev: Research) -> Found:
        question = await ctx.store.get("question")
        return Found(text=str(await self.researcher.run(f"{question}\n{ev.plan}")))

    @step
    async def doubt(self, ctx: Context, ev: Doubt) -> Found:
        question = await ctx.store.get("question")
        return Found(text=str(await self.skeptic.run(f"{question}\n{ev.plan}")))

    @step
    async def write(self, ctx: Context, ev: Found) -> Approved | Rejected | None:
        found = ctx.collect_events(ev, [Found, Found])
        if found is None:
            return None
        question = await ctx.store.get("question")
        verdict = str(await self.newsroom.run("\n".join([question, *(f.text for f in found)])))
        return Approved(text=verdict) if "PUBLISH" in verdict else Rejected(verdict=verdict)

    @step
    async def edit(self, ctx: Context, ev: Rejected) -> Approved:
        question = await ctx.store.get("question")
        reply = await self.llm.acomplete(
            f"You are the editor. Repair the answer.\n{question}\n{ev.verdict}"
        )
        return Approved(text=reply.text)

    @step
    async def publish(self, ctx: Context, ev: Approved) -> StopEvent:
        question = await ctx.store.get("question")
        reply = await self.llm.acomplete(
            f"You are the publisher. Give the final text.\n{question}\n{ev.text}"
        )
        return StopEvent(result=reply.text)


async def main(questions: list[str]) -> None:
    llm = OpenAILike(
        model="tiny",
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        is_chat_model=True,
        is_function_calling_model=True,
    )
    desk = Desk(llm, timeout=60)
    answers = await asyncio.gather(*(desk.run(question=question) for question in questions))
    for question, text in zip(questions, answers, strict=True):
        print(f"{question} -> {text}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
