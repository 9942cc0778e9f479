"""Streams are passed on byte for byte, event by event, whatever pieces they come in, and read."""

import json
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kairos.proxy import SseReader, Usage, usage_of
from kairos.proxy.sse import begin_well

MIB = 1 << 20
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}}


def data(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode()


CHUNK = data({"choices": [{"index": 0, "delta": {"content": 'of "usage" and "error"'}}]})
USAGE_CHUNK = data({"choices": [], "usage": USAGE})
ERROR = data({"error": {"message": "out of memory"}})
DONE = b"data: [DONE]"
FORWARDED = {
    "text": CHUNK,
    "usage so far": data({"choices": [{"index": 0}], "usage": USAGE}),
    "no choices, no usage": data({"choices": [], "usage": None, "prompt_filter_results": []}),
    "usage without choices": data({"usage": USAGE}),
    "comment": b": keep-alive",
    "error": ERROR,
    "done": DONE,
    "named event": b'event: x\nid: 1\ndata: {"type": "x"}',
    "malformed": b'data: {"choices": [], "usage": {',
    "wrong types": data({"choices": [], "usage": {"prompt_tokens": "nine"}}),
    "negative": data({"choices": [], "usage": {"prompt_tokens": -9}}),
    "no UTF-8": b'data: {"choices": [], "usage": {}, "type": "\xff"}',
    "a number in two lines": b'data: {"choices": [], "usage": {"prompt_tokens": 1\ndata: 2}}',
    "no object": b'data: ["usage"]',
    "nested": b'data: {"usage": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "nested answers": b'data: {"usage": null, "response": ' + b'{"response":' * 5_000,
    "empty": b"",
}
DROPPED = {
    "usage": USAGE_CHUNK,
    "spaced": b'data:{ "usage" :{"prompt_tokens":9},"choices":[ ] }',
    "in two lines": b'event: x\ndata: {"choices": [],\ndata: "usage": {"prompt_tokens": 9}}',
}


@st.composite
def streams(draw):
    """Events with their endings, as (event, whether it is a usage chunk)."""
    chosen = draw(
        st.lists(
            st.tuples(st.sampled_from(list(FORWARDED.values())), st.just(False))
            | st.tuples(st.sampled_from(list(DROPPED.values())), st.just(True)),
            max_size=8,
        )
    )
    ends = draw(st.sampled_from([b"\n", b"\r\n"]))
    return [(event.replace(b"\n", ends) + ends + ends, usage) for event, usage in chosen]


@st.composite
def pieces(draw, stream: bytes):
    places = st.integers(0, len(stream))
    cuts = sorted([0, *draw(st.lists(places, max_size=12)), len(stream)])
    return [stream[a:b] for a, b in pairwise(cuts)]


@pytest.mark.parametrize("drop_usage_chunk", [False, True])
@given(streams(), st.data())
def test_a_stream_is_forwarded_event_by_event_as_it_came(drop_usage_chunk, stream, draw):
    """Or without its usage chunk."""
    unfinished = b'data: {"choices": [], "usage'
    stream = [(event, drop_usage_chunk and is_usage) for event, is_usage in stream]
    whole = b"".join(event for event, _ in stream) + unfinished
    reader = SseReader(drop_usage_chunk=drop_usage_chunk)
    came, forwarded = b"", b""

    for piece in draw.draw(pieces(whole)):
        came += piece
        forwarded += reader.feed(piece)
        assert forwarded == expected(stream, upto=len(came))
    assert reader.rest() == unfinished
    assert reader.rest() == b""


def test_the_last_event_may_lack_its_end():
    reader = SseReader(drop_usage_chunk=False)

    assert reader.feed(CHUNK + b"\n\n" + DONE + b"\n") == CHUNK + b"\n\n"
    assert not reader.done
    assert reader.rest() == DONE + b"\n"
    assert reader.done


def test_events_are_counted_and_comments_are_none():
    reader = SseReader(drop_usage_chunk=True)
    named, comment = FORWARDED["named event"], FORWARDED["comment"]

    reader.feed(b"\n\n".join([CHUNK, comment, named, b"", USAGE_CHUNK, CHUNK]))

    assert reader.events == 3


def expected(stream: list[tuple[bytes, bool]], upto: int) -> bytes:
    """All events that have come whole within the first bytes, but for usage chunks."""
    forward, end = b"", 0
    for event, is_usage in stream:
        end += len(event)
        if end <= upto and not is_usage:
            forward += event
    return forward


@pytest.mark.parametrize("drop_usage_chunk", [False, True])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_usage_error_and_end_are_seen_whatever_the_pieces(drop_usage_chunk, end, size):
    stream = end.join([CHUNK, ERROR, USAGE_CHUNK, CHUNK, DONE, b""])
    reader = SseReader(drop_usage_chunk=drop_usage_chunk)

    for start in range(0, len(stream), size):
        assert not reader.done
        reader.feed(stream[start : start + size])

    assert reader.done
    assert reader.error == '{"message": "out of memory"}'
    assert reader.usage == usage_of(json.dumps({"usage": USAGE}).encode())
    assert (reader.usage.prompt, reader.usage.completion, reader.usage.cached) == (9, 4, 8)


@pytest.mark.parametrize("name", [n for n in FORWARDED if n not in ("done", "error")])
def test_events_that_tell_of_neither_end_nor_error_are_not_taken_for_such(name):
    reader = SseReader(drop_usage_chunk=True)

    reader.feed(FORWARDED[name] + b"\n\n")

    assert (reader.done, reader.error) == (False, None)


@pytest.mark.parametrize("event", [DONE, b"data:[DONE]", b": end\ndata: [DONE]", b"id: 9\n" + DONE])
def test_the_end_is_seen_in_any_spelling_that_the_format_allows(event):
    reader = SseReader(drop_usage_chunk=False)

    reader.feed(event + b"\n\n")

    assert reader.done


@pytest.mark.parametrize("event", [b"data: [DONE] not yet", b"[DONE]", data({"text": "[DONE]"})])
def test_an_end_that_is_only_quoted_is_none(event):
    reader = SseReader(drop_usage_chunk=False)

    reader.feed(event + b"\n\n")

    assert not reader.done


@pytest.mark.parametrize("ends", ["completed", "incomplete", "failed"])
def test_the_responses_api_ends_with_an_event_that_wraps_the_answer(ends):
    answer = {"usage": {"input_tokens": 5, "output_tokens": 2}, "error": None}
    reader = SseReader(drop_usage_chunk=True)
    event = b"event: x\n" + data({"type": f"response.{ends}", "response": answer}) + b"\n\n"

    assert reader.feed(event) == event
    assert reader.usage == Usage(input_tokens=5, output_tokens=2)
    assert (reader.usage.prompt, reader.usage.completion, reader.usage.cached) == (5, 2, None)
    assert (reader.done, reader.error) == (True, None)


def test_the_responses_api_ends_also_without_a_word_of_usage():
    reader = SseReader(drop_usage_chunk=False)

    reader.feed(data({"type": "response.created", "response": {}}) + b"\n\n")
    assert not reader.done
    reader.feed(data({"type": "response.completed", "response": {}}) + b"\n\n")
    assert reader.done


def test_an_error_inside_a_responses_answer_is_seen():
    reader = SseReader(drop_usage_chunk=False)

    reader.feed(data({"type": "response.failed", "response": {"error": {"code": "x"}}}) + b"\n\n")

    assert (reader.done, reader.error) == (True, '{"code": "x"}')


def test_of_a_long_error_only_the_start_is_kept():
    reader = SseReader(drop_usage_chunk=False)

    reader.feed(b'data: {"error": "xx%s"}\n\n' % ("é" * 1000).encode())

    assert reader.error == '"xx' + "é" * 248 + "\N{REPLACEMENT CHARACTER}"


def test_the_last_of_several_usages_counts_and_later_events_do_not_unsay_it():
    reader = SseReader(drop_usage_chunk=False)

    reader.feed(data({"usage": {"prompt_tokens": 9, "completion_tokens": 1}}) + b"\n\n")
    reader.feed(data({"usage": {"prompt_tokens": 9, "completion_tokens": 2}}) + b"\n\n")
    reader.feed(data({"usage": None}) + b"\n\n")

    assert reader.usage == Usage(prompt_tokens=9, completion_tokens=2)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"not JSON",
        b"[1]",
        b"{}",
        b'{"usage": null}',
        b'{"usage": 5}',
        b'{"usage": {"prompt_tokens": -1}}',
        b'{"usage": {"prompt_tokens": 1.5}}',
        b'{"usage": {"prompt_tokens": %d}}' % 10**400,
        b'{"usage": {"prompt_tokens_details": {"cached_tokens": -1}}}',
        b'{"usage": ' + b"[" * 100_000,
        b'{"usage": {"prompt_tokens": 1}, "type": "\xff"}',
    ],
    ids=range(12),
)
def test_an_answer_without_readable_usage_has_none(answer):
    assert usage_of(answer) is None


def test_usage_is_read_under_the_names_of_either_api():
    chat = b'{"usage": {"prompt_tokens": 0, "completion_tokens": 0, "input_tokens": 7}}'
    responses = b'{"usage": {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 2}}}'

    of_chat, of_responses = usage_of(chat), usage_of(responses)

    assert (of_chat.prompt, of_chat.completion, of_chat.cached) == (0, 0, None)
    assert (of_responses.prompt, of_responses.completion, of_responses.cached) == (3, None, 2)


WORDS = [
    *(
        b"\n",
        b"\n\n",
        b"\r\n",
        b"data: ",
        b"data:",
        b'"usage"',
        b":null",
        b'"error":',
        b"[DONE]",
        b"{}",
    ),
    *(
        b'"content":"',
        b'"content":""',
        b'x"',
        b'"response.',
        b'"text": "a"',
        b'"choices":[]',
        b": ping",
    ),
    *(each + b"\n\n" for each in (CHUNK, USAGE_CHUNK, ERROR, DONE)),
    b'data: {"choices":[{"delta":{"content":"x"}}],"usage":null}\n\n',
    b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":""}}]}\n\n',
    b'data: {"type":"response.completed","content":"x"}\n\n',
]


@given(st.lists(st.sampled_from(WORDS), max_size=12), st.booleans())
@example([b'"content":"', b'"content":"', b"\n\n"], False)
@example([b'"content":"', b"\n\n"], False)
@example([b'"content":"', b"\n", b"data:", b"\n\n"], False)
def test_what_comes_at_once_is_read_as_what_comes_byte_by_byte(words, drops):
    said = b"".join(words)
    whole, slow = SseReader(drop_usage_chunk=drops), SseReader(drop_usage_chunk=drops)
    assert whole.feed(said) == b"".join(slow.feed(said[n : n + 1]) for n in range(len(said)))
    assert whole.rest() == slow.rest()
    for name in ("events", "completion_tokens", "usage", "error", "done"):
        assert getattr(whole, name) == getattr(slow, name), name


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"\n\n", b"data: ", b'"usage"', b"{}"])))
def test_no_bytes_raise_and_none_are_lost(parts):
    reader = SseReader(drop_usage_chunk=False)

    forwarded = b"".join([*map(reader.feed, parts), reader.rest()])

    assert forwarded == b"".join(parts)


@pytest.mark.parametrize("drop_usage_chunk", [False, True])
def test_an_event_without_end_is_forwarded_and_takes_no_more_memory_than_its_limit(
    drop_usage_chunk,
):
    reader = SseReader(drop_usage_chunk=drop_usage_chunk)
    piece = b'"usage"' + b"x" * (MIB // 4)
    came = forwarded = 0
    tracemalloc.start()
    try:
        for _ in range(40):
            came += len(piece)
            forwarded += len(reader.feed(piece))
            assert came - forwarded <= MIB
            assert tracemalloc.get_traced_memory()[0] < 2 * MIB
    finally:
        tracemalloc.stop()
    assert forwarded + len(reader.rest()) == came


@pytest.mark.parametrize("drop_usage_chunk", [False, True])
def test_events_after_one_that_was_too_large_are_read_again(drop_usage_chunk):
    reader = SseReader(drop_usage_chunk=drop_usage_chunk)
    stream = [b"data: " + b"x" * (MIB + 1), b"x\n\n", USAGE_CHUNK + b"\n\n", DONE + b"\n\n"]

    forwarded = b"".join(map(reader.feed, stream))

    if drop_usage_chunk:
        del stream[2]
    assert forwarded == b"".join(stream)
    assert reader.usage is not None
    assert reader.done


def test_a_last_event_too_large_to_read_does_not_make_its_stream_incomplete():
    reader = SseReader(drop_usage_chunk=False)
    event = b'event: response.completed\ndata: {"type":"response.completed","x":"%s"}\n\n'
    stream = event % (b"x" * 2 * MIB)

    for start in range(0, len(stream), MIB // 2):
        reader.feed(stream[start : start + MIB // 2])

    assert reader.done


def chunk(**delta):
    return data({"choices": [{"index": 0, "delta": delta, "finish_reason": None}], "usage": None})


WITH_CONTENT = {
    "text": chunk(content="Hello"),
    "with its role": chunk(role="assistant", content="Hello"),
    "a quote": chunk(content='"'),
    "a backslash": chunk(content="\\"),
    "tight": b'data:{"choices":[{"delta":{"content":"Hello"}}]}',
    "tight, after what is empty": b'data:{"choices":[{"delta":{"content":"","reasoning":"So"}}]}',
    "reasoning": chunk(reasoning_content="So"),
    "reasoning, as vLLM calls it": chunk(reasoning="So"),
    "a tool's arguments": chunk(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]),
    "of /v1/completions": data({"choices": [{"index": 0, "text": "Hello"}]}),
    "of /v1/responses": data({"type": "response.output_text.delta", "delta": "Hello"}),
    "a tool's, of /v1/responses": data(
        {"type": "response.function_call_arguments.delta", "delta": "{"}
    ),
}
WITHOUT_CONTENT = {
    "the role": chunk(role="assistant", content=""),
    "the role, tight": b'data:{"choices":[{"delta":{"role":"assistant","content":""}}]}',
    "the end": data({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
    "null": chunk(content=None, reasoning_content=None),
    "empty text": data({"choices": [{"index": 0, "text": ""}]}),
    "all of it again, of /v1/responses": data(
        {"type": "response.output_text.done", "text": "Hello", "content": "Hello"}
    ),
    "of /v1/responses, its start": data({"type": "response.created", "response": {}}),
    "an error": ERROR,
    "done": DONE,
}


@pytest.mark.parametrize("event", WITH_CONTENT.values(), ids=list(WITH_CONTENT))
@pytest.mark.parametrize("drop_usage_chunk", [False, True])
def test_a_chunk_with_content_is_a_token_at_least(event, drop_usage_chunk):
    reader = SseReader(drop_usage_chunk=drop_usage_chunk)

    for number in range(1, 4):
        reader.feed(event + b"\n\n")
        assert reader.completion_tokens == number


@pytest.mark.parametrize("event", WITHOUT_CONTENT.values(), ids=list(WITHOUT_CONTENT))
def test_a_chunk_without_content_is_none(event):
    reader = SseReader(drop_usage_chunk=False)

    reader.feed(event + b"\n\n")

    assert reader.completion_tokens == 0


@pytest.mark.parametrize("size", [1, 5, 64, 10_000])
def test_chunks_are_counted_whatever_the_pieces(size):
    whole = b"".join(event + b"\n\n" for event in (*WITH_CONTENT.values(), CHUNK, DONE))
    reader = SseReader(drop_usage_chunk=False)

    for start in range(0, len(whole), size):
        reader.feed(whole[start : start + size])

    assert reader.completion_tokens == len(WITH_CONTENT) + 1


def test_a_count_that_comes_with_a_chunk_is_better_than_chunks():
    reader = SseReader(drop_usage_chunk=False)

    for tokens in (3, 6):
        usage = {"prompt_tokens": 9, "completion_tokens": tokens}
        reader.feed(data({"choices": [{"delta": {"content": "x"}}], "usage": usage}) + b"\n\n")
        assert reader.completion_tokens == tokens
    reader.feed(data({"usage": {"prompt_tokens": 9, "completion_tokens": 1}}) + b"\n\n")
    assert reader.completion_tokens == 2  # never fewer than there were chunks


TEXTS = ["", "a", 'said \\"so\\"', "\\\\", 'x"}}],"usage":{"completion_tokens":7', "usage", "error"]
TEXTS += ["response.", "[DONE]", "two\n\ndata: {}", 'x"}}],"error":"broken', "\n"]


def event_with(text):
    event = '{"choices":[{"delta":{"content":"%s"},"finish_reason":null}]}'
    return b"data: %b\n\n" % (event % text).encode()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("others", [[], ["b"], ["b", "c"]])
@pytest.mark.parametrize("rest", [b"", DONE + b"\n\n", b"data: {"])
def test_events_are_read_alike_after_others_that_differ_in_their_text_alone(text, others, rest):
    whole = b"".join(event_with(each) for each in (*others, text, *others)) + rest
    after, alone = (SseReader(drop_usage_chunk=True) for _ in range(2))
    assert after.feed(event_with("word")) == event_with("word")
    events, chunks = after.events, after._chunks

    # By itself, as what comes is read while an event is not whole.
    alone._pending = b"d"
    assert after.feed(whole) == alone.feed(whole[1:])

    assert (after.usage, after.error, after.done) == (alone.usage, alone.error, alone.done)
    assert (after.events - events, after._chunks - chunks) == (alone.events, alone._chunks)
    assert after.rest() == alone.rest()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("end", [USAGE_CHUNK, ERROR, DONE, b": ping", b"\n"])
def test_a_stream_that_comes_at_once_is_read_as_one_that_comes_event_by_event(text, end):
    events = [event_with(each) for each in ("", "a", "b", text, "c")] + [end + b"\n\n"]
    whole, each = (SseReader(drop_usage_chunk=True) for _ in range(2))

    assert whole.feed(b"".join(events)) == b"".join(map(each.feed, events))

    for name in ("events", "completion_tokens", "usage", "error", "done"):
        assert getattr(whole, name) == getattr(each, name), name


def test_an_event_that_ends_as_one_with_text_does_may_be_an_error():
    reader = SseReader(drop_usage_chunk=True)
    reader.feed(event_with("word"))
    before, _, after = event_with("").partition(b'""')
    reader.feed(b'data: {"error":"' + b"a" * len(before) + b'"' + after)
    assert reader.events == 2
    assert reader._chunks == 1


def test_comments_are_no_events_whatever_they_say():
    reader = SseReader(drop_usage_chunk=True)
    for _ in range(2):
        reader.feed(b': {"content":"word"}\n\n')
    assert reader.events == 0


@pytest.mark.parametrize(
    ("events", "well"),
    [
        (CHUNK + b"\n\n", True),
        (b": comment\n\n" + CHUNK + b"\r\n\r\ndata: {no", True),
        (DONE + b"\n\n", True),
        (b'data: {"a":\ndata: 1}\n\n', True),
        (b": comment\n\n", True),
        (b"", True),
        (b"data: {not json\n\n" + CHUNK, False),
        (b"event: \xff\xfe\n\ndata: <html>\n\n", False),
    ],
)
def test_how_a_stream_begins(events, well):
    assert begin_well(events) is well
