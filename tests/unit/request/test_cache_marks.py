"""Check that marks for caches, which move on with a conversation, change no prefix and no agent."""

import json

import pytest

from kairos.request import body_of, rules_of
from kairos.request.identity.conversation import conversation, without_marks

MARK = {"cache_control": {"type": "ephemeral"}}
LONG = "All that is to be known of it. " * 40
ROUTES = ["/v1/messages", "/v1/chat/completions"]


def turns(marked, texts=12, style=None):
    """Make a conversation with one message marked, as coding agents mark it."""
    said = []
    for number in range(texts):
        role, text = ("user", "assistant")[number % 2], f"{number}: {LONG}"
        content = text
        if number == marked:
            content = [{"type": "text", "text": text} | MARK]
        said.append({"role": role, "content": content})
    tools = [{"name": "a", "input_schema": {}}, {"name": "b", "input_schema": {}} | MARK]
    billing = {"type": "text", "text": f"x-anthropic-billing-header: cch={marked};"}
    system = [billing, {"type": "text", "text": "You find things."} | MARK]
    body = {"model": "m", "max_tokens": 9, "system": system, "tools": tools, "messages": said}
    return json.dumps(body, **style or {}).encode()


def read(route, content):
    return body_of(rules_of("POST", route), {b"content-type": b"application/json"}, content)


@pytest.mark.parametrize("style", [{}, {"separators": (",", ":")}])
@pytest.mark.parametrize("route", ROUTES)
def test_a_mark_that_moves_leaves_prefix_and_agent(route, style):
    bodies = [read(route, turns(marked, style=style)) for marked in (None, 0, 5, 11)]
    assert len({each.prefix for each in bodies}) == 1
    assert bodies[0].prefix
    talks = [conversation(each.prompt) for each in bodies]
    assert len({each.agent_key() for each in talks}) == 1
    assert len({tuple(each.keys()) for each in talks}) == 1


@pytest.mark.parametrize("route", ROUTES)
def test_a_conversation_that_goes_on_begins_with_what_it_was(route):
    before, after = read(route, turns(7, texts=8)), read(route, turns(11, texts=12))
    assert after.prefix[: len(before.prefix)] == before.prefix


@pytest.mark.parametrize(
    ("spelt", "left"),
    [
        (b'{"a":1,"cache_control":{"type":"ephemeral"}}', b'{"a":1}'),
        (b'{"cache_control": {"type": "ephemeral", "ttl": "1h"}, "a":1}', b'{ "a":1}'),
        (b'{"cache_control":{}}', b"{}"),
        (b'[{"type":"text","text":"a \\" b","cache_control":{}}]', b'"a \\" b"'),
        (
            b'[{"type":"text","text":"a"},{"type":"text","text":"b","cache_control":{}}]',
            b'[{"type":"text","text":"a"},{"type":"text","text":"b"}]',
        ),
        (b'"a text with \\"cache_control\\":{}"', b'"a text with \\"cache_control\\":{}"'),
        (b'{"cache_control":{"a":{}}}', b'{"cache_control":{"a":{}}}'),
        (b'{"cache_control":null}', b'{"cache_control":null}'),
    ],
)
def test_only_marks_are_left_out(spelt, left):
    assert without_marks(spelt) == left


def test_a_body_made_to_be_slow_is_read_in_time_that_grows_with_its_length():
    """Note that a pattern which starts again at each of many places would take minutes."""
    for piece in (
        b'"cache_control":{',
        b',"cache_control" :',
        b'[{"type":"text","text":"',
        b'[{"type":"text","text":"a","cache_control":{}',
    ):
        assert without_marks(piece * 60_000)
