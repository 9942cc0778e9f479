"""Prefix caches of engines, apart by tenant where the setting says so."""

import json

import pytest

from tests.e2e.test_tenants_apart import SPY, keys

MINE = {"Authorization": "Bearer honest"}


def salts(engine):
    return [json.loads(call.body).get("cache_salt") for call in engine.calls]


@pytest.mark.parametrize("is_set", [False, True])
async def test_tenants_have_salts_of_their_own(kairos, engine, is_set):
    served = await kairos(engine.url, key=keys(), cache_salt=is_set)
    for headers, fields in ((MINE, {}), (MINE, {}), (SPY, {}), (SPY, {"cache_salt": "hers"})):
        call = served.chat(headers=headers, **fields)
        engine.release()
        assert (await call).status == 200
    first, again, spys, named = salts(engine)
    if is_set:
        assert len({first, spys, named}) == 3
        assert first == again
    else:
        assert (first, again, spys, named) == (None, None, None, "hers")
