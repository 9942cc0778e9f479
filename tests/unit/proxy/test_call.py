"""A call tells its facts one after the other, whatever comes while one is told."""

import asyncio
from types import SimpleNamespace

import pytest

from kairos.core import Arrived, Bounced, Dispatch, Failed, Refuse, UpstreamFailed, WaitedTooLong
from kairos.proxy import Asked, Call, EngineClient, HttpEngine
from kairos.proxy.asked import PassedHeaders
from kairos.proxy.engine_client import InstanceNotKnown
from kairos.proxy.response_forwarder import ERROR_BYTES, EngineError, ErrorAnswer
from kairos.request import Body, ClientResponse
from tests.support.simulate import build


class Client:
    """Who asked, and whose call it is."""

    answering = None
    has_left = wants_answer = False

    def __init__(self):
        self.status, self.written, self.cut = None, b"", False
        self.ends = []

    def start(self, status, headers):
        self.status = status

    def write(self, data, *, more):
        self.written += data
        return True

    def cut_off(self):
        self.cut = True

    def ended(self, error):
        self.ends.append(error)


class Sink:
    """Answers each fact with the commands that a test says; sees facts told within each other."""

    def __init__(self, calls, commands):
        self.calls, self.commands, self.facts, self.depth = calls, commands, [], 0

    def now(self):
        return 0

    def feed(self, event):
        self.depth += 1
        assert self.depth == 1, "a fact within another"
        self.facts.append(type(event))
        for command in self.commands.get(type(event), ()):
            (self.calls.dispatch if isinstance(command, Dispatch) else self.calls.refuse)(command)
        self.depth -= 1


@pytest.mark.parametrize(
    ("commands", "facts", "error"),
    [
        (
            {Arrived: [Dispatch("r", "nowhere")], Bounced: [Dispatch("r", "nowhere")]},
            [Arrived, Bounced, Bounced, Bounced],
            None,
        ),
        (
            {Arrived: [Dispatch("r", "nowhere")], Bounced: [Refuse("r", None, "no_other")]},
            [Arrived, Bounced, Failed],
            InstanceNotKnown,
        ),
        ({Arrived: [Refuse("r", None, "waited_too_long")]}, [Arrived, Failed], WaitedTooLong),
    ],
    ids=["sent nowhere", "nowhere else", "refused"],
)
async def test_what_is_told_while_a_fact_is_told_tells_none_before_the_next_turn(
    commands, facts, error
):
    engine, client = HttpEngine(EngineClient()), Client()
    sink = Sink(engine.calls, commands)
    asked = Asked("POST", "/v1/chat/completions", b"", {})
    response = ClientResponse("r", client)
    request = build.request("r")
    call = Call(
        request, asked, Body(b"{}"), response, sink, engine, client, print, tries_again=True
    )
    call.begin()
    assert sink.facts == [Arrived]
    for _ in facts[1:]:
        await asyncio.sleep(0)
    assert sink.facts == facts
    assert [type(each) for each in client.ends] == ([] if error is None else [error])


def test_an_error_follows_where_nothing_of_a_stream_was_written():
    client = Client()
    response = ClientResponse("r", client)
    response.streams = True
    response.start(200, [(b"content-type", b"text/event-stream")])
    response.fail(UpstreamFailed("broke off"))
    assert client.written.startswith(b"data: ")
    assert client.written.endswith(b"data: [DONE]\n\n")


def test_amid_an_event_it_would_become_a_part_of_that():
    client = Client()
    response = ClientResponse("r", client)
    response.streams = True
    response.start(200, [(b"content-type", b"text/event-stream")])
    response.write(b"data: {", more=True)
    response.fail(UpstreamFailed("broke off"))
    assert client.written == b"data: {"
    assert client.cut


def test_an_engines_error_is_not_waited_for_once_all_that_is_kept_of_it_is_there():
    """An error may have no end."""
    answer = SimpleNamespace(progressed=lambda: None, status=503, headers=[])
    client = Client()
    response = ClientResponse("r", client)
    passing = SimpleNamespace(client=SimpleNamespace(passed_headers=PassedHeaders()))
    call = SimpleNamespace(response=response, engine=passing, where="engine")
    forwarder = ErrorAnswer(call, answer)
    forwarder.came(b"x" * (ERROR_BYTES - 1))
    with pytest.raises(EngineError) as caught:
        forwarder.came(b"y")
    assert caught.value.answer == (503, [], b"x" * (ERROR_BYTES - 1) + b"y")
