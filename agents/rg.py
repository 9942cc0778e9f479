"""RG, a workflow in sequence: a researcher gathers material, a writer makes it a report."""

from kairos.agent import Application, Task

TOPIC_LIMIT = 400  # characters, about 100 tokens
NOTES_LIMIT = 1_200

app = Application("rg", entry="researcher")

_RESEARCHER = """You are a researcher. List the five most important facts about the topic as short
bullet points."""
_WRITER = """You are a writer. Write a short report on the topic from the notes: a title, then two
paragraphs."""


@app.agent("researcher")
async def researcher(task: Task) -> None:
    topic = task.text("text")[:TOPIC_LIMIT]
    notes = await task.complete(_RESEARCHER, f"Topic: {topic}", max_tokens=120)
    await task.send("writer", task.value | {"notes": notes})


@app.agent("writer")
async def writer(task: Task) -> None:
    topic, notes = task.text("text")[:TOPIC_LIMIT], task.text("notes")[:NOTES_LIMIT]
    report = await task.complete(_WRITER, f"Topic: {topic}\nNotes:\n{notes}", max_tokens=180)
    await task.finish({"report": report})
