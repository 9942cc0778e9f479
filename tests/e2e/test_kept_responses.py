"""Stored responses are found on the engine that keeps them, also after a restart."""

import pytest
from aiohttp import web

from tests.kinds.table import RESPONSES, body, drops, says, whole

HELD = "/v1/responses/resp_1"
ASKED = [
    ("GET", HELD, {}),
    ("GET", f"{HELD}/input_items", {}),
    ("DELETE", HELD, {}),
    ("POST", f"{HELD}/cancel", {}),
    ("POST", RESPONSES, body(RESPONSES, previous_response_id="resp_1")),
    ("POST", RESPONSES, body(RESPONSES, previous_response_id="resp_1", stream=True)),
    ("GET", "/v1/conversations/c", {}),
    ("GET", "/v1/anything/kept", {}),
]


@pytest.mark.parametrize(("method", "path", "asked"), ASKED)
@pytest.mark.parametrize("missing", [404, 405, 501])
async def test_the_engine_that_has_it_is_asked_in_the_end(
    kairos, engines, method, path, asked, missing
):
    others = [await engines() for _ in range(6)]
    for each in others:
        each.answer = says(missing)
    holder = await engines()
    holder.answer = whole
    served = await kairos(*(each.url for each in (*others, holder)))
    for _ in range(2):
        assert (await served.ask(method, path, json=asked)).status == 200
    assert len(holder.calls) == 2
    assert not served.balancer.faults.circuits


@pytest.mark.parametrize(("method", "path", "asked"), ASKED)
async def test_where_none_has_it_an_engines_own_words_say_so(kairos, engines, method, path, asked):
    all_of_them = [await engines() for _ in range(5)]
    for each in all_of_them:
        each.answer = says(404)
    served = await kairos(*(each.url for each in all_of_them))
    answer = await served.ask(method, path, json=asked)
    assert (answer.status, answer.json()["error"]["message"]) == (404, "mine")
    assert sum(len(each.calls) for each in all_of_them) == 5


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_engines_that_fail_are_not_all_tried(kairos, engines, method):
    all_of_them = [await engines() for _ in range(6)]

    async def fails(request):
        return await (drops(request) if request.method == "GET" else says(500)(request))

    for each in all_of_them:
        each.answer = fails
    served = await kairos(*(each.url for each in all_of_them))
    path, asked = (HELD, {}) if method == "GET" else (RESPONSES, body(RESPONSES))
    assert (await served.ask(method, path, json=asked)).status >= 500
    assert sum(len({c.path for c in each.calls}) for each in all_of_them) == 3


FORM = (
    '--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
    "Content-Type: audio/wav\r\n\r\n\x01\x02\x03\r\n"
)
FIELD = '--x\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'


@pytest.mark.parametrize("route", ["/v1/audio/transcriptions", "/v1/audio/translations"])
@pytest.mark.parametrize(
    "form",
    [
        FORM + FIELD.format("model", "whisper"),
        FIELD.format("model", "whisper") + FORM,
        FIELD.format("language", "en") + FORM + FIELD.format("model", "whisper"),
        "".join(FIELD.format("include[]", n) for n in range(40)) + FIELD.format("model", "whisper"),
    ],
    ids=["last", "first", "amid others", "behind many"],
)
async def test_an_upload_is_sent_to_an_engine_of_its_model(kairos, engines, route, form):
    chat, speech = await engines(), await engines()
    chat.models, speech.models = ["llama"], ["whisper"]
    chat.answer, speech.answer = says(404), whole
    served = await kairos(chat.url, speech.url)
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    for _ in range(6):
        answer = await served.ask("POST", route, data=(form + "--x--\r\n").encode(), headers=kind)
        assert answer.status == 200, answer.body
    assert chat.calls == []
    assert speech.calls[0].body == (form + "--x--\r\n").encode()


@pytest.mark.parametrize("content", [b"", b"--x", b"--x--", b"no form", b"--x\r\n\r\n\r\n--x--"])
async def test_an_upload_that_is_no_form_is_the_engines_to_judge(served, engine, content):
    async def answer(_):
        return web.json_response({"error": "no form"}, status=422)

    engine.answer = answer
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    answered = await served.ask("POST", "/v1/audio/transcriptions", data=content, headers=kind)
    assert answered.status == 422
