"""The JSON Schema of messages says what Kairos writes, and what it reads."""

import asyncio

import jsonschema
import msgspec
import pytest

from kairos.agent import Application, run, submit
from kairos.cluster import Envelope, MemoryBus
from kairos.cluster.bus import envelope
from kairos.cluster.pool.messages import CallHeaders
from kairos.core import Topic
from tests.support.schema import SCHEMA, as_object, problems

HEADERS = SCHEMA["$defs"]["message"]["properties"]["headers"]
CALL_HEADERS = SCHEMA["$defs"]["call"]["properties"]["headers"]


def pattern_of(kind):
    return SCHEMA["$defs"][kind]["pattern"]


def text_pattern(field):
    """The pattern of a field that holds a text; None: it holds a number."""
    kinds = getattr(field.type, "types", (field.type,))
    text = [kind for kind in kinds if isinstance(kind, msgspec.inspect.StrType)]
    return text[0].pattern if text else None


def in_ecmascript(pattern):
    return pattern.replace(r"\A", "^").replace(r"\Z", "$")


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    ("struct", "schema", "beside"),
    [
        (Envelope, HEADERS, {"kairos-dead-topic", "kairos-dead-group", "kairos-dead-reason"}),
        (CallHeaders, CALL_HEADERS, {"kairos-type", "traceparent"}),
    ],
    ids=["message", "call"],
)
def test_headers_and_patterns_are_those_of_the_code(struct, schema, beside):
    fields = {field.encode_name: field for field in msgspec.inspect.type_info(struct).fields}

    assert set(schema["properties"]) - beside == set(fields)
    required = {name for name, field in fields.items() if field.required}
    assert set(schema["required"]) - beside == required - beside
    for name, field in fields.items():
        kind = schema["properties"][name]["$ref"].removeprefix("#/$defs/")
        if kind == "replyTopic":
            continue
        if (pattern := text_pattern(field)) is not None:
            assert in_ecmascript(pattern) == pattern_of(kind), name
        else:
            assert kind in ("instant", "attempt", "budget"), name


def test_numbers_and_bounds_are_those_of_the_code():
    assert in_ecmascript(envelope.NUMBER) == pattern_of("instant")
    bounds = SCHEMA["$defs"]["headers"]
    assert bounds["maxProperties"] >= envelope.OTHERS_LIMIT + len(HEADERS["properties"])
    assert f"at most {envelope.OTHERS_LIMIT}." in bounds["description"]
    assert bounds["propertyNames"]["maxLength"] == envelope.HEADER_NAME_LENGTH
    assert bounds["additionalProperties"]["maxLength"] == envelope.HEADER_LENGTH


async def test_what_agents_send_is_valid():
    """Tasks, messages between agents, results and dead letters."""
    app = Application("schema", entry="first")

    @app.agent("first")
    async def first(task):
        await task.send("second", task.value)

    @app.agent("second")
    async def second(task):
        if "fail" in task.value:
            raise ValueError
        await task.finish(task.value)

    bus, seen, enough = MemoryBus(), {}, asyncio.Event()

    def keep(topic):
        async def handle(message):
            seen.setdefault(topic, []).append(message)
            if len(seen.get(Topic.RESULTS, ())) == 2:
                enough.set()

        return bus.consume(topic, "test", handle)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        topics = [app.inbox("first"), app.inbox("second"), Topic.DEAD_LETTERS, Topic.RESULTS]
        running = [tasks.create_task(keep(topic)) for topic in topics]
        running.append(tasks.create_task(run([app], bus, llm=None)))
        await submit(bus, app, {"a": 1}, now_us=5)
        await submit(bus, app, {"fail": True}, now_us=5, msg_id="x/1", deadline_us=10**17)
        await enough.wait()
        for task in running:
            task.cancel()

    assert set(seen) == set(topics)
    for message in [each for messages in seen.values() for each in messages]:
        assert problems("message", as_object(message)) == []


REQUEST = {
    "key": "default",
    "headers": {
        "kairos-type": "call",
        "kairos-request-id": "r",
        "kairos-reply-to": "kairos.replies.host",
    },
    "value": {"messages": [{"role": "user", "content": "Hello"}]},
}


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("headers", {"kairos-reply-to": "kairos.requests"}),
        ("headers", {"kairos-reply-to": "kairosXreplies.host"}),
        ("headers", {"kairos-reply-to": "kairos.replies."}),
        ("headers", {"kairos-request-id": ""}),
        ("headers", {"kairos-type": "told"}),
        ("headers", {"kairos-deadline": "soon"}),
        ("value", {"stream": True}),
        ("value", {"messages": []}),
        ("value", {"messages": "Hello"}),
    ],
)
def test_what_is_no_call_is_refused(part, change):
    assert problems("call", REQUEST) == []
    assert problems("call", REQUEST | {part: REQUEST[part] | change}) != []
