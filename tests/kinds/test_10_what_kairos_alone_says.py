"""Kind 10: what Kairos alone says to engines never comes from a caller, however it is spelt.

An engine that took these fields would let one call go before all others, connect to any host, or
hand out the KV blocks of others' prompts.
"""

import json

import pytest

from kairos.request import ROUTES
from tests.kinds.table import CHAT, body, whole

EVIL = {"do_remote_prefill": True, "remote_host": "192.0.2.1", "remote_port": 1}
FIELDS = {
    "priority": -1_000,
    "kv_transfer_params": EVIL,
    "bootstrap_host": "192.0.2.1",
    "bootstrap_port": 1,
    "bootstrap_room": 7,
}
JSON = "application/json"


def plain(said):
    return json.dumps(said)


def escaped(said):
    text = json.dumps(said)
    for name in FIELDS:
        text = text.replace(f'"{name}"', f'"\\u{ord(name[0]):04x}{name[1:]}"')
    return text


def twice(said):
    return json.dumps(said)[:-1] + ", " + json.dumps({**FIELDS, "priority": None})[1:]


def spaced(said):
    return "\n " + json.dumps(said, indent=8).replace(":", " \t: ")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("spell", [plain, escaped, twice, spaced])
async def test_a_field_of_kaiross_own_never_passes(kairos, engine, route, spell):
    served = await kairos(engine.url)
    engine.answer = whole
    asked = {**FIELDS, **body(route, a_field_of_an_engine={"b": [1.5, None]})}
    answer = await served.ask("POST", route, data=spell(asked), headers={"Content-Type": JSON})
    assert answer.status == 200, answer.body
    assert json.loads(engine.calls[0].body) == body(route, a_field_of_an_engine={"b": [1.5, None]})


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("stream", [False, True])
async def test_each_by_itself_and_beside_usage_that_is_asked_for(kairos, engine, field, stream):
    served = await kairos(engine.url)
    engine.answer = whole
    asked = body(CHAT, stream=stream, **{field: FIELDS[field]})
    assert (await served.ask("POST", CHAT, json=asked)).status == 200
    got = json.loads(engine.calls[0].body)
    assert field not in got
    assert got.get("stream_options") == ({"include_usage": True} if stream else None)


@pytest.mark.parametrize(
    "kind",
    [JSON, "Application/JSON; charset=utf-8", "application/vnd.api+json", " application/json"],
)
@pytest.mark.parametrize("route", [CHAT, "/score", "/tokenize", "/v1/anything"])
async def test_however_the_type_is_spelt(kairos, engine, route, kind):
    served = await kairos(engine.url)
    engine.answer = whole
    asked = json.dumps(body(route, **FIELDS))
    await served.ask("POST", route, data=asked, headers={"Content-Type": kind})
    assert not FIELDS.keys() & json.loads(engine.calls[0].body).keys()


@pytest.mark.parametrize("route", [CHAT, "/score", "/tokenize", "/v1/anything"])
async def test_nor_where_it_is_left_out(kairos, engine, route):
    served = await kairos(engine.url)
    engine.answer = whole
    wire = await served.connect()
    await wire.post(route, json.dumps(body(route, **FIELDS)).encode())
    await engine.called(1)
    assert not FIELDS.keys() & json.loads(engine.calls[0].body).keys()
