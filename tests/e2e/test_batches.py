"""OpenAI's files and batches, with its own client."""

import asyncio
import codecs
import json

import openai
import pytest
from aiohttp import web

from kairos.batches import service as batches_service
from kairos.core import SECOND, Arrived, Cancelled
from kairos.host import WallClock
from tests.e2e.batch_files import (
    CHAT,
    begin,
    chat_line,
    client_of,
    ended,
    kept_in,
    key,
    lines_of,
    read,
    upload,
)
from tests.support.observe.figures import look_often


@pytest.fixture
async def served(kairos, standin, tmp_path):
    return await kairos(standin.url, batches=kept_in(tmp_path / "batches"))


@pytest.fixture
async def client(served):
    async with client_of(served.url) as client:
        yield client


async def test_an_unchanged_client_runs_a_batch_to_its_end(served, client):
    batch = await begin(client, lines_of(40), metadata={"night": "1"})
    assert batch.status in ("validating", "in_progress")
    batch = await ended(client, batch)

    assert batch.status == "completed"
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (40, 40, 0)
    assert batch.metadata == {"night": "1"}
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    assert batch.expires_at == batch.created_at + 86_400
    assert batch.error_file_id is None
    lines = await read(client, batch.output_file_id)
    assert [line["custom_id"] for line in lines] == [f"doc-{number}" for number in range(40)]
    for line in lines:
        assert set(line) == {"id", "custom_id", "response", "error"}
        assert line["error"] is None
        assert line["response"]["status_code"] == 200
        assert line["response"]["body"]["choices"][0]["message"]["content"]
    arrived = served.facts.all(Arrived)
    assert {fact.request.service_class for fact in arrived} == {"batch"}
    assert {(fact.request.app, fact.request.agent) for fact in arrived} == {("batch", "line")}
    assert len({fact.request.workflow_id for fact in arrived}) == 40


async def test_files_are_uploaded_listed_shown_read_and_deleted(client):
    content = lines_of(3)
    files = [await upload(client, content, f"{name}.jsonl") for name in "abc"]

    shown = await client.files.retrieve(files[0].id)
    assert (shown.filename, shown.bytes, shown.purpose) == ("a.jsonl", len(content), "batch")
    assert (await client.files.content(files[0].id)).content == content
    page = await client.files.list(limit=2)
    assert [file.id for file in page.data] == [files[2].id, files[1].id]
    assert page.has_more
    assert [file.id async for file in client.files.list(limit=2, order="asc")] == [
        file.id for file in files
    ]
    gone = await client.files.delete(files[1].id)
    assert gone.deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(files[1].id)
    assert len((await client.files.list()).data) == 2


async def test_a_large_file_comes_whole_through_a_form_in_pieces(client):
    content = b"\r\n--x".join(b"%d" % number for number in range(400_000))
    file = await upload(client, content)

    assert file.bytes == len(content)
    assert (await client.files.content(file.id)).content == content


async def test_what_is_wrong_with_lines_is_told_with_their_numbers(client):
    lines = [
        chat_line(1),
        "{no json",
        chat_line(1),
        chat_line(2).replace(CHAT, "/v1/embeddings"),
        chat_line(3, stream=True),
        chat_line(4).replace("POST", "GET"),
        '{"custom_id": "y"}',
    ]
    batch = await ended(client, await begin(client, "\n".join(lines).encode()))

    assert batch.status == "failed"
    assert [(error.line, error.code) for error in batch.errors.data] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "mismatched_url"),
        (5, "invalid_body"),
        (6, "invalid_method"),
        (7, "invalid_line"),
    ]
    assert batch.output_file_id is None
    batch = await ended(client, await begin(client, b"\n \n"))
    assert [error.code for error in batch.errors.data] == ["empty_file"]


async def test_what_no_engine_can_serve_is_in_the_file_of_errors(client):
    lines = [chat_line(1), chat_line(2, n=-1), chat_line(3)]
    batch = await ended(client, await begin(client, "\n".join(lines).encode()))

    assert batch.status == "completed"
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 1)
    [line] = await read(client, batch.error_file_id)
    assert line["custom_id"] == "doc-2"
    assert line["response"]["status_code"] == 400
    assert line["response"]["body"]["error"]["type"] == "invalid_request_error"
    assert len(await read(client, batch.output_file_id)) == 2


USED = {"prompt_tokens": 7, "completion_tokens": 2}
CACHED, REASONED = {"cached_tokens": 3}, {"reasoning_tokens": 1}


@pytest.mark.parametrize(
    ("url", "body", "usage"),
    [
        (CHAT, {}, USED | {"total_tokens": 9}),
        (CHAT, {}, USED | {"prompt_tokens_details": CACHED, "completion_tokens_details": REASONED}),
        (
            "/v1/responses",
            {"input": "hi"},
            {"input_tokens": 7, "output_tokens": 2}
            | {"input_tokens_details": CACHED, "output_tokens_details": REASONED},
        ),
        (
            "/v1/messages",
            {},
            {"input_tokens": 4, "cache_read_input_tokens": 3, "output_tokens": 2},
        ),
        ("/v1/completions", {"prompt": "hi"}, USED),
        ("/v1/embeddings", {"input": "hi"}, {"prompt_tokens": 9, "total_tokens": 9}),
        (CHAT, {}, None),
    ],
)
async def test_a_batch_of_any_endpoint_shows_its_model_and_what_it_used(
    kairos, engine, tmp_path, url, body, usage
):
    async def answer(_):
        return web.json_response({"object": "made up", "usage": usage})

    engine.answer = answer
    served = await kairos(engine.url, batches=kept_in(tmp_path), key=(key("acme"),))
    lines = [json.loads(chat_line(number, **body)) | {"url": url} for number in range(3)]
    content = "\n".join(map(json.dumps, lines)).encode()
    async with client_of(served.url) as client:
        batch = await ended(client, await begin(client, content, endpoint=url))
        shown = batch.model_dump()

    assert (batch.status, batch.request_counts.completed) == ("completed", 3)
    assert [call.path for call in engine.calls] == [url] * 3
    assert shown["model"] == "tiny"
    if usage is None:
        assert shown["usage"] is None
        return
    cached = 3 * ("cached" in str(usage) or "cache_read" in str(usage))
    of_input, of_output = (9, 0) if url == "/v1/embeddings" else (7, 2)
    assert shown["usage"] == {
        "input_tokens": 3 * of_input,
        "input_tokens_details": {"cached_tokens": 3 * cached},
        "output_tokens": 3 * of_output,
        "output_tokens_details": {"reasoning_tokens": 3 * ("reasoning" in str(usage))},
        "total_tokens": 27,
    }


ANSWERS = {
    "line separator": '{"a": "x\u2028y"}',
    "paragraph separator": '{"a": "x\u2029y"}',
    "next line": '{"a": "x\x85y"}',
    "half of a pair": '{"a": "\\ud83d"}',
    "half of a pair, on lines": '{\n"a": "\\ud83d",\r\n"b": "\u2028"}',
    "a pair": '{"a": "\U0001f600 \\ud83d\\ude00"}',
    "on lines": '{\n  "a": "x\\ny"\r\n}',
    "numbers": '{"a": 0.10000000000000000001, "b": 1e400, "c": 12345678901234567890123}',
    "escaped controls": '{"a": "\\u0000\\u001e\\u000c"}',
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_line_of_output_is_one_line_for_every_reader(kairos, engine, tmp_path, name):
    async def answer(_):
        return web.Response(text=ANSWERS[name], content_type="application/json")

    engine.answer = answer
    served = await kairos(engine.url, batches=kept_in(tmp_path), key=(key("acme"),))
    async with client_of(served.url) as client:
        batch = await ended(client, await begin(client, lines_of(2)))
        text = (await client.files.content(batch.output_file_id)).text

    assert len(text.splitlines()) == 2
    for line in text.splitlines():
        assert json.loads(line)["response"]["body"] == json.loads(ANSWERS[name])


MARKED = {
    "mark": (codecs.BOM_UTF8 + lines_of(2), "completed"),
    "mark and blank lines": (codecs.BOM_UTF8 + b"\n\n" + lines_of(2) + b"\n", "completed"),
    "carriage returns": (lines_of(2).replace(b"\n", b"\r\n") + b"\r\n", "completed"),
    "utf-16": (lines_of(2).decode().encode("utf-16"), "failed"),
    "utf-16-be": (codecs.BOM_UTF16_BE + lines_of(2).decode().encode("utf-16-be"), "failed"),
}


@pytest.mark.parametrize("name", MARKED)
async def test_a_byte_order_mark_is_taken_and_utf_16_is_refused_by_name(client, name):
    content, state = MARKED[name]
    batch = await ended(client, await begin(client, content))

    assert batch.status == state
    if state == "failed":
        [error] = batch.errors.data
        assert error.message == "the file is not UTF-8 but UTF-16: save it as UTF-8"


async def test_a_batch_is_cancelled_and_what_was_not_called_is_told(kairos, engine, tmp_path):
    engine.answer = engine.when_released
    served = await kairos(engine.url, batches=kept_in(tmp_path / "batches"), max_num_seqs=2)
    async with client_of(served.url) as client:
        batch = await begin(client, lines_of(50))
        await engine.called(2)
        with pytest.raises(openai.ConflictError, match="has not ended"):
            await client.files.delete(batch.input_file_id)
        batch = await client.batches.cancel(batch.id)
        assert batch.status == "cancelling"
        await served.facts.until(lambda: served.balancer.waiting == 0)
        engine.release(2)
        batch = await ended(client, batch)

        assert batch.status == "cancelled"
        assert batch.cancelled_at >= batch.cancelling_at
        assert batch.request_counts.completed == 2
        assert len(await read(client, batch.output_file_id)) == 2
        rest = await read(client, batch.error_file_id)
        assert {line["error"]["code"] for line in rest} == {"batch_cancelled"}
        assert len(rest) == 48
        assert len(engine.calls) == 2
        with pytest.raises(openai.ConflictError, match="cancelled"):
            await client.batches.cancel(batch.id)
        assert (await client.files.delete(batch.input_file_id)).deleted


class MovedClock(WallClock):
    """Read the time of day, moved on by what a test sets."""

    more_us = 0

    def now(self):
        return super().now() + MovedClock.more_us


@pytest.fixture
def clock(monkeypatch):
    """Return the clock of the batches of a service that is started next."""
    monkeypatch.setattr(batches_service, "WallClock", MovedClock)
    monkeypatch.setattr(MovedClock, "more_us", 0)
    return MovedClock


async def test_a_batch_whose_window_is_over_expires_and_keeps_what_it_has(
    kairos, engine, tmp_path, clock
):
    engine.answer = engine.when_released
    served = await kairos(engine.url, batches=kept_in(tmp_path / "batches"), max_num_seqs=1)
    async with client_of(served.url) as client:
        batch = await begin(client, lines_of(5), completion_window="1h")
        await engine.called(1)
        await served.facts.until(lambda: served.balancer.waiting > 0)
        clock.more_us = 3600 * SECOND
        # What waits is given up when the window ends; what runs may finish.
        await served.facts.until(lambda: served.balancer.waiting == 0 and len(engine.calls) == 1)
        engine.release()
        batch = await ended(client, batch)

        assert batch.status == "expired"
        assert batch.request_counts.completed == 1
        assert len(await read(client, batch.output_file_id)) == 1
        rest = await read(client, batch.error_file_id)
        assert [line["error"]["code"] for line in rest] == ["batch_expired"] * 4


async def test_a_batch_near_its_window_rises_and_one_that_is_early_does_not(
    kairos, engine, tmp_path, clock
):
    engine.answer = engine.when_released
    served = await kairos(engine.url, batches=kept_in(tmp_path / "batches"), max_num_seqs=1)
    async with client_of(served.url) as client:
        late = await begin(client, lines_of(4), completion_window="1h")
        early = await begin(client, lines_of(4), completion_window="24h")
        await engine.called(1)
        clock.more_us = 57 * 60 * SECOND

        def classes(batch):
            requests = [fact.request for fact in served.facts.all(Arrived)]
            return {each.service_class for each in requests if each.id.startswith(batch.id)}

        await served.facts.until(lambda: "standard" in classes(late) and classes(early))
        assert classes(early) == {"batch"}
        engine.release(8)
        assert (await ended(client, late)).status == "completed"
        assert (await ended(client, early)).status == "completed"


async def test_calls_that_are_refused_or_fail_for_now_are_made_again(kairos, engine, tmp_path):
    served = await kairos(engine.url, batches=kept_in(tmp_path / "batches"))
    answered = engine.answer
    statuses = [503, 500, 429]

    async def answer(request):
        status = statuses.pop() if statuses else 200
        return await answered(request) if status == 200 else web.Response(status=status)

    engine.answer = answer
    async with client_of(served.url) as client:
        batch = await ended(client, await begin(client, lines_of(3)))

    assert batch.status == "completed"
    assert (batch.request_counts.completed, batch.request_counts.failed) == (3, 0)


async def test_a_key_that_may_not_ask_for_batch_has_the_class_that_it_may(
    kairos, standin, tmp_path
):
    keys = (key("acme", service_classes=("interactive",), app="reports", name="night"),)
    served = await kairos(standin.url, batches=kept_in(tmp_path / "batches"), key=keys)
    async with client_of(served.url) as client:
        batch = await ended(client, await begin(client, lines_of(2)))
        with pytest.raises(openai.PermissionDeniedError):
            await begin(client, lines_of(2), extra_headers={"X-Kairos-Class": "batch"})

    assert batch.status == "completed"
    asked = served.facts.all(Arrived)[0].request
    assert (asked.service_class, asked.app, asked.key) == ("interactive", "reports", "night")


async def test_a_request_that_is_sent_again_makes_nothing_more(kairos, engine, tmp_path):
    engine.answer = engine.when_released
    limits = {"max_files": 2, "max_bytes": 5_000, "max_open": 1}
    keys = [key("acme"), key("globex")]
    served = await kairos(engine.url, key=keys, batches=kept_in(tmp_path / "batches", **limits))

    def named(name):
        return {"extra_headers": {"Idempotency-Key": name}}

    async def ask(client, input_file, **given):
        asked = {"endpoint": CHAT, "completion_window": "24h"} | given
        return await client.batches.create(input_file_id=input_file.id, **asked, **named("b"))

    async def send(client, content, name="f"):
        file = ("input.jsonl", content)
        return await client.files.create(file=file, purpose="batch", **named(name))

    async with client_of(served.url) as client:
        file = await send(client, lines_of(1))
        await send(client, lines_of(2), "other")
        assert (await send(client, lines_of(1))).id == file.id  # though there is no room for more
        with pytest.raises(openai.UnprocessableEntityError, match="a different request"):
            await send(client, lines_of(3))
        assert len((await client.files.list()).data) == 2
        assert len([*(tmp_path / "batches" / "files").iterdir()]) == 2

        batch = await ask(client, file)
        assert (await ask(client, file)).id == batch.id  # though no more may be open
        with pytest.raises(openai.UnprocessableEntityError, match="a different request"):
            await ask(client, file, completion_window="2h")
        assert len((await client.batches.list()).data) == 1
        with pytest.raises(openai.BadRequestError, match="1 to 255"):
            await send(client, b"{}", "x" * 256)
    async with client_of(served.url, "globex") as client:
        theirs = await send(client, lines_of(1))
        assert theirs.id != file.id
        assert (await ask(client, theirs)).id != batch.id


async def test_each_tenant_has_so_many_files_bytes_and_open_batches(kairos, engine, tmp_path):
    engine.answer = engine.when_released
    limits = {"max_files": 4, "max_file_bytes": 2_000, "max_bytes": 5_000, "max_open": 2}
    limits["max_lines"] = 3
    served = await kairos(engine.url, batches=kept_in(tmp_path / "batches", **limits))
    async with client_of(served.url) as client:
        with pytest.raises(openai.APIStatusError, match="split it") as refused:
            await upload(client, b"x" * 2_001)
        assert refused.value.status_code == 413
        many = await ended(client, await begin(client, lines_of(4)))
        assert [error.code for error in many.errors.data] == ["too_many_lines"]
        batches = [await begin(client, lines_of(2)) for _ in range(2)]
        with pytest.raises(openai.RateLimitError, match="at once"):
            await begin(client, lines_of(1))
        with pytest.raises(openai.RateLimitError, match="delete some"):
            await upload(client, b"{}")
        engine.release(4)
        for batch in batches:
            await ended(client, batch)
    names = {path.name for path in (tmp_path / "batches" / "files").iterdir()}
    assert len(names) == 4 + 2  # and what was refused is not there


async def test_files_and_database_are_their_owners_alone(client, tmp_path):
    batch = await ended(client, await begin(client, lines_of(2)))

    assert batch.output_file_id is not None
    for path in (tmp_path / "batches").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


async def test_without_a_directory_there_are_none_and_it_is_said_what_to_set(kairos, engine):
    served = await kairos(engine.url)
    async with client_of(served.url) as client:
        for ask in (client.files.list(), client.batches.list(), upload(client, b"{}")):
            with pytest.raises(openai.NotFoundError, match=r"directory of \[batches\]"):
                await ask
    assert engine.calls == []


async def test_what_is_no_batch_or_no_form_is_refused_with_what_to_do(served, client):
    file = await upload(client, lines_of(1))
    for given in (
        {"endpoint": "/v1/rerank"},
        {"completion_window": "later"},
        {"completion_window": "8d"},
        {"metadata": {"a": "x" * 513}},
        {"extra_headers": {"X-Kairos-App": "no name!"}},
        {"extra_headers": {"X-Kairos-Class": "nice"}},
        {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
    ):
        asked = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"} | given
        with pytest.raises(openai.BadRequestError):
            await client.batches.create(**asked)
    with pytest.raises(openai.NotFoundError):
        await begin(client, b"{}", extra_body={"input_file_id": "file-none"})
    with pytest.raises(openai.BadRequestError, match="purpose"):
        await client.files.create(file=("a", b"x"), purpose="assistants")
    for headers, body in (
        ({"content-type": "application/json"}, b"{}"),
        ({"content-type": "multipart/form-data; boundary=x"}, b"--x\r\n\r\nnothing"),
        ({"content-type": "multipart/form-data; boundary=x"}, b"--x--\r\n"),
    ):
        answer = await served.ask("POST", "/v1/files", headers=headers, data=body)
        assert answer.status == 400, answer.body
    assert (await served.ask("POST", "/v1/batches", data=b"[" * 70_000)).status == 413


async def test_a_file_that_expires_sooner_says_so(client):
    expiry = {"anchor": "created_at", "seconds": 3_600}
    file = await client.files.create(
        file=("a.jsonl", lines_of(1)), purpose="batch", expires_after=expiry
    )
    batch = await client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", output_expires_after=expiry
    )
    batch = await ended(client, batch)
    output = await client.files.retrieve(batch.output_file_id)

    assert file.expires_at == file.created_at + 3_600
    assert output.expires_at == output.created_at + 3_600


async def test_metrics_tell_lines_by_how_they_ended_and_batches_that_are_open(
    kairos, engine, tmp_path, monkeypatch
):
    look_often(monkeypatch)
    served = await kairos(engine.url, batches=kept_in(tmp_path / "batches"), max_num_seqs=1)

    async def told(line):
        async with asyncio.timeout(60):
            while line not in (await served.ask("GET", "/metrics")).body.decode():
                await asyncio.sleep(0.05)

    async with client_of(served.url) as client:
        await ended(client, await begin(client, lines_of(3)))
        await told('kairos_batch_lines_total{state="completed"} 3.0')
        await told('kairos_batches_open{state="in_progress"} 0.0')
        engine.answer = engine.when_released
        held = await begin(client, lines_of(2))
        await engine.called(4)
        await told('kairos_batches_open{state="in_progress"} 1.0')
        await client.batches.cancel(held.id)
        await served.facts.seen(Cancelled)  # the line that waits
        engine.release(1)
        await ended(client, held)
        await told('kairos_batch_lines_total{state="cancelled"} 1.0')
