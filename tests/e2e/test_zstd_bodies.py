"""Bodies that clients compress by zstd."""

import json

import pytest
import zstandard

CHAT = "/v1/chat/completions"
GOOD = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}).encode()
ZSTD = zstandard.compress(GOOD)


@pytest.mark.parametrize(
    "content", [GOOD, ZSTD[:-1], ZSTD[:4], ZSTD + b"{}", ZSTD + ZSTD, b"x" + ZSTD, b"\x1f\x8b", b""]
)
async def test_a_body_that_is_said_to_be_zstd_and_is_not_is_refused(served, content):
    wire = await served.post_raw(CHAT, content, "Content-Encoding: zstd")
    assert (await wire.answer()).error()["code"] == "invalid_request"


async def test_a_zstd_body_may_neither_become_too_large_nor_need_much_memory(kairos, engine):
    served = await kairos(engine.url, max_body_bytes=1_000_000)
    long_window = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
    packed = zstandard.ZstdCompressor(compression_params=long_window).compressobj()
    for content, status in (
        (zstandard.compress(b" " * 50_000_000), 413),
        (packed.compress(b" " * 900_000) + packed.flush(), 400),
    ):
        wire = await served.post_raw(CHAT, content, "Content-Encoding: zstd")
        assert (await wire.answer()).status == status
    assert engine.calls == []


@pytest.mark.parametrize("encoding", ["zstd", "Zstd", " zstd "])
async def test_a_zstd_body_reaches_the_engine_as_it_was_before(served, engine, encoding):
    for content in (GOOD, GOOD[:-1] + b', "more": "' + b"x" * 3_000_000 + b'"}'):
        wire = await served.post_raw(
            CHAT, zstandard.compress(content), f"Content-Encoding: {encoding}"
        )
        assert (await wire.answer()).status == 200
        assert engine.calls[-1].body == content
        assert "content-encoding" not in engine.calls[-1].headers
