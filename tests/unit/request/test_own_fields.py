"""Fields that Kairos alone sets for engines: removed from bodies, refused, or added."""

import json
import re

import pytest

from kairos.core import InvalidRequest
from kairos.request import body_of, read_body, rules_of
from kairos.request.large_body import LARGE_BYTES

JSON = {b"content-type": b"application/json"}
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES = {
    CHAT: {"model": "m", "messages": MESSAGES},
    COMPLETIONS: {"model": "m", "prompt": "Hi"},
    "/v1/responses": {"model": "m", "input": "Hi"},
    "/v1/messages": {"model": "m", "messages": MESSAGES, "max_tokens": 1},
    EMBEDDINGS: {"model": "m", "input": "Hi"},
    "/v1/rerank": {"model": "m", "query": "Hi", "documents": ["a"]},
    "/pooling": {"model": "m", "input": "Hi"},
}
PADDING = {"padding": "x" * LARGE_BYTES}


def read(path, body, salt=None):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return body_of(rules_of("POST", path), JSON, content, salt)


def salt_of(path, body, salt):
    return json.loads(read(path, body, salt).content)["cache_salt"]


@pytest.mark.parametrize("padding", [{}, PADDING], ids=["small", "large"])
@pytest.mark.parametrize(
    "name",
    [
        *("priority", "kv_transfer_params", "ec_transfer_params"),
        *("bootstrap_host", "bootstrap_port", "bootstrap_room"),
    ],
)
def test_a_field_of_kairos_is_taken_out_however_it_is_spelt(name, padding):
    for path, body in BODIES.items():
        escaped = "".join(f"\\u{ord(each):04x}" for each in name)
        for spelt in (name, escaped, name[:-1] + escaped[-6:]):
            content = json.dumps(body | padding)[:-1] + f', "{spelt}": {{"a": 1}}}}'
            assert json.loads(read(path, content.encode()).content) == body | padding


@pytest.mark.parametrize("padding", [{}, PADDING], ids=["small", "large"])
@pytest.mark.parametrize(
    "extra",
    [
        b'{"kv_transfer_params": "x"}',
        b'{"kv_transfer_params": 1}',
        b'{"a": 1, "kv_transfer_params": ["do_remote_prefill"]}',
        b'{"\\u006bv_transfer_params": "x"}',
        b'{"ec_transfer_params": "x"}',
        b'{"kv_cache_report_mode": "full"}',
        b'{"kv_transfer_params": "x", "kv_transfer_params": null}',
        b'{"a": "%b"}' % (b"x" * 20_000),
    ],
)
def test_members_that_engines_take_for_such_a_field_are_refused(extra, padding):
    for path, body in BODIES.items():
        content = json.dumps(body | padding).encode()[:-1] + b', "vllm_xargs": %b}' % extra
        with pytest.raises(InvalidRequest, match="vllm_xargs") as refused:
            read(path, content)
        assert refused.value.param == "vllm_xargs"


@pytest.mark.parametrize("extra", ['{"a": 1}', "{}", "null", "7", '["kv_transfer_params"]'])
def test_other_members_pass_untouched(extra):
    content = json.dumps(BODIES[CHAT])[:-1] + f', "vllm_xargs": {extra}}}'
    assert read(CHAT, content.encode()).content == content.encode()


def test_they_are_refused_in_forms_too():
    content = (
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
        b'--b\r\nContent-Disposition: form-data; name="vllm_xargs"\r\n\r\n'
        b'{"kv_transfer_params": "x"}\r\n--b--\r\n'
    )
    headers = {b"content-type": b"multipart/form-data; boundary=b"}
    with pytest.raises(InvalidRequest, match="vllm_xargs"):
        body_of(rules_of("POST", "/v1/audio/transcriptions"), headers, content)


@pytest.mark.parametrize("padding", [{}, PADDING], ids=["small", "large"])
@pytest.mark.parametrize("path", [*BODIES])
def test_each_tenant_has_a_salt_that_no_other_can_have(path, padding):
    body = BODIES[path] | padding
    mine, yours = salt_of(path, body, "mine"), salt_of(path, body, "yours")
    assert re.fullmatch("[0-9a-f]{32}", mine)
    assert mine == salt_of(path, body, "mine") != yours
    # A client's own salt counts within its tenant, and takes nobody where another is.
    own = [salt_of(path, body | {"cache_salt": each}, "mine") for each in (yours, mine, "", "x")]
    assert len({mine, yours, *own}) == 6
    read_one, read_other = (read(path, body, each) for each in ("mine", "yours"))
    assert not read_one.prefix or read_one.prefix[0] != read_other.prefix[0]


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b" { } ",
        b'{"input":"a"}',
        b' {"input": "a"} ',
        b'{"cache_salt": "a"}',
        b'{"cache_salt": "a", "input": "b", "cache_salt": "c"}',
        b'{"\\u0063ache_salt": "a"}',
        b'{"priority": 3, "cache_salt": null, "input": "b"}',
        b'{"stream": true, "input": "b"}',
    ],
)
def test_the_salt_is_the_only_one_in_the_body(content):
    read_one = read_body(content, chat=False, streams_usage=True, salt="mine")
    pairs = json.loads(read_one.content, object_pairs_hook=list)
    assert [name for name, _ in pairs].count("cache_salt") == 1
    expected = {k: v for k, v in json.loads(content).items() if k not in ("cache_salt", "priority")}
    found = dict(pairs)
    del found["cache_salt"]
    found.pop("stream_options", None)
    assert found == expected


def test_a_call_that_only_counts_has_none():
    content = b'{"model": "m", "prompt": "Hi"}'
    assert read("/tokenize", content, "mine").content == content
