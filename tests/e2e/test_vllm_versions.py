"""The oldest vLLM that is supported and the newest, as stand-ins: what differs between them."""

import aiohttp
import pytest

from kairos.engines import read_metrics
from tests.support.simulate import standin as standins
from tests.support.simulate.standin import NEWEST, OLDEST

CHAT = "/v1/chat/completions"
TALK = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
CALLS = {
    CHAT: TALK,
    "/v1/completions": {"model": "tiny", "prompt": "Hello", "max_tokens": 4},
    "/v1/embeddings": {"model": "tiny", "input": "Hello"},
    "/tokenize": {"model": "tiny", "prompt": "Hello"},
    "/v1/responses": {"model": "tiny", "input": "Hello", "max_output_tokens": 4},
    "/v1/messages": TALK,
    "/v1/messages/count_tokens": TALK,
}
NOT_BEFORE = {"/v1/responses", "/v1/messages", "/v1/messages/count_tokens"}


def settings(version):
    return standins.StandInSettings(model="tiny", vllm=version)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("path", CALLS)
async def test_a_route_is_served_by_versions_that_have_it(kairos, version, path):
    async with standins.serve(settings(version)) as engine:
        served = await kairos(engine.url)
        answer = await served.ask("POST", path, json=CALLS[path])
    assert answer.status == (404 if version == OLDEST and path in NOT_BEFORE else 200)


@pytest.mark.parametrize("path", sorted(NOT_BEFORE))
async def test_a_route_of_newer_versions_is_served_where_an_older_one_is_in_the_pool(kairos, path):
    async with standins.serve(settings(OLDEST)) as old, standins.serve(settings(NEWEST)) as new:
        served = await kairos(old.url, new.url)
        for _ in range(4):
            assert (await served.ask("POST", path, json=CALLS[path])).status == 200


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
async def test_a_stream_tells_its_usage_in_either_version(kairos, version):
    async with standins.serve(settings(version)) as engine:
        served = await kairos(engine.url)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        answer = await served.chat(**options, max_tokens=4)
    assert b'"usage"' in answer.body
    assert answer.body.endswith(b"data: [DONE]\n\n")


async def figures_of(version):
    """Return what Kairos reads of the engine's figures, and their text."""
    async with (
        standins.serve(settings(version)) as engine,
        aiohttp.ClientSession() as session,
        session.get(f"{engine.url}/metrics") as answer,
    ):
        text = await answer.read()
    return read_metrics("e", text), text


async def test_figures_are_read_by_the_names_of_either_version():
    old, old_text = await figures_of(OLDEST)
    new, new_text = await figures_of(NEWEST)
    names = {
        b"vllm:kv_cache_usage_perc": b"vllm:gpu_cache_usage_perc",
        b"vllm:prefix_cache_queries_total": b"vllm:gpu_prefix_cache_queries_total",
        b"vllm:prefix_cache_hits_total": b"vllm:gpu_prefix_cache_hits_total",
    }
    for now, before in names.items():
        assert (now in new_text, before in new_text) == (True, False)
        assert (now in old_text, before in old_text) == (False, True)
    assert b"kv_cache_size_tokens" not in old_text
    for text, has_label in ((old_text, False), (new_text, True)):
        [cache] = [line for line in text.splitlines() if b"cache_config_info" in line]
        [running] = [line for line in text.splitlines() if b"requests_running" in line]
        assert (b'engine="0"' in cache, b'engine="0"' in running) == (has_label, True)
    assert old.kind is new.kind
    assert old.cache == new.cache
    assert old.cache.kv_tokens == standins.StandInSettings().kv_tokens
    assert old.status.waiting_for_room is None
    assert new.status.waiting_for_room == 0
    for name in ("kv_used", "running", "waiting", "preemptions", "queried_tokens", "cached_tokens"):
        assert getattr(old.status, name) == getattr(new.status, name) == 0
