"""LangGraph graphs that nobody changed, run as flows: the states are those that LangGraph's own
`invoke` returns, before the same engine, whose answer depends on all that it is asked."""

import json
import sysconfig
from hashlib import sha256

import pytest
from aiohttp import web

from tests.frameworks import flows

pytestmark = pytest.mark.frameworks

HERE = flows.HERE / "langgraph"
# LangGraph from its own environment, and Kairos with what it needs from this one.
WITH_KAIROS = f"import sys; sys.path += [{str(flows.ROOT)!r}, {sysconfig.get_path('purelib')!r}]; "

ROWS = {
    "letter": [
        {"complaint": "It {leaks}.\n", "customer": "Ms {{ Ö }}"},
        {"complaint": "{% raw %} late", "customer": "Mr B", "summary": "Twice. "},
    ],
    "review": [
        {"paper": "On 'tides'", "pages": 12, "blind": True},
        {"paper": "On dice", "pages": 3, "blind": False},
    ],
    "search": [{"question": "the harbour"}, {"question": 'a "tide"'}],
}
LIFTED = {
    "letter": (["draft", "polish", "summarise"], []),
    "review": (["decide", "ground", "novelty", "style"], ["figures"]),
    "search": (["answer", "answer_2"], ["collect", "look up", "shorten"]),
}


@pytest.fixture
async def engine(engines):
    """Answers with a function of messages and sampling, JSON where that word is asked for."""
    engine = await engines()

    async def answer(request):
        body = json.loads(await request.read())
        asked = {key: body.get(key) for key in ("messages", "model", "temperature", "stop")}
        asked["limit"] = body.get("max_tokens") or body.get("max_completion_tokens")
        name = sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
        wants_json = body["messages"][-1]["content"].startswith("JSON")
        text = f'```json\n{{"why": "{name}", "sure": true, "p": 0.5}}\n```' if wants_json else name
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        return web.json_response(
            {"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage}
        )

    engine.answer = answer
    return engine


async def program(engine, tmp_path, script, *arguments):
    said = await flows.run_program(
        "langgraph", WITH_KAIROS + flows.RUN, engine.url, tmp_path, HERE / script, *arguments
    )
    return json.loads(said.splitlines()[-1])


def asked(engine):
    """The messages of calls since the last time; not of those that compute a beginning ahead."""
    bodies = [json.loads(call.body) for call in engine.calls]
    engine.calls.clear()
    return sorted(
        json.dumps(body["messages"], sort_keys=True)
        for body in bodies
        if not body.get("continue_final_message")
    )


@pytest.mark.parametrize("name", sorted(ROWS))
async def test_a_graph_that_nobody_changed_gives_as_a_flow_what_its_invoke_gives(
    engine, tmp_path, name
):
    rows = json.dumps(ROWS[name])

    states = await program(engine, tmp_path, "graphs.py", name, rows)
    of_invoke = asked(engine)
    found = await program(engine, tmp_path, "as_flow.py", name, rows, engine.url)

    assert found["rows"] == states
    assert all(len(state) >= 4 for state in states)
    assert (found["llm"], found["opaque"]) == LIFTED[name]
    assert asked(engine) == of_invoke


REFUSED = {
    "no path map": "node 'a': its conditional edges ('choose') have no path map",
    "path map": "node 'a': its conditional edges ('choose') lead to one of __end__, b",
    "command": "node 'planner' says itself where to go on (Command), to one of critic, res",
    "circle": "nodes lead in a circle: a -> b -> a; a flow repeats a bounded number",
    "messages": "state key 'messages' holds messages",
    "pydantic": "the state must be a TypedDict",
    "retries": "node 'a' has 'retry_policy'",
    "writer": "node 'a' asks for LangGraph's 'writer'",
    "checkpointer": "the graph has a checkpointer",
    "interrupt": "the graph has interrupts",
    "no graph": "a graph is what compile() gives, not a StateGraph",
    "purity": "purity: there is no node 'z'; there are a, b",
}
OPAQUE = {
    "temperature": "its model says no temperature",
    "tools": "its model is a _ChatModelBinding, not a ChatOpenAI as it is",
    "logprobs": "its model sends 'logprobs'",
    "placeholder": "its prompt has a MessagesPlaceholder",
    "format": "its prompt has '{pages}', which is not a plain name",
    "jinja": "its prompt is not of f-strings",
    "no parser": "its model is not followed by",
    "function": "it is not `prompt | model | parser`",
    "image": "its prompt has more than texts",
    "name": "its prompt reads differently",
}


async def test_what_a_flow_cannot_say_is_refused_by_name_or_stays_opaque(engine, tmp_path):
    said = await program(engine, tmp_path, "beyond.py")

    for found, expected in ((said["refused"], REFUSED), (said["opaque"], OPAQUE)):
        assert found.keys() == expected.keys()
        for name, text in expected.items():
            assert text in (found[name] or ""), (name, found[name])
    assert "pages" in said["wrong"]["missing"]
    assert said["wrong"]["two writers"] == "InvalidUpdateError"
    assert "returned a Command" in said["wrong"]["command"]
    assert "returned a set" in said["wrong"]["set"]
