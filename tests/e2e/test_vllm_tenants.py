"""Tenants before a real vLLM, which knows none: what it keeps and caches is apart."""

import os

import pytest

from tests.attacks.found.test_tenants import HERS, MINE, keys
from tests.support import vllm

pytestmark = pytest.mark.vllm
RESPONSES = "/v1/responses"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "VLLM_ENABLE_RESPONSES_API_STORE", "1")
        directory = tmp_path_factory.mktemp("vllm")
        with vllm.running(directory, "--enable-prompt-tokens-details") as urls:
            yield urls[0]


@pytest.fixture
async def served(kairos, url, request):
    return await kairos(url, key=keys(), cache_salt=request.param)


async def model_of(served):
    return (await served.ask("GET", "/v1/models", headers=HERS)).json()["data"][0]["id"]


@pytest.mark.parametrize("served", [False], indirect=True)
async def test_a_response_is_read_and_gone_on_from_by_its_tenant_alone(served):
    asked = {"model": await model_of(served), "input": "Hello", "max_output_tokens": 4}
    chosen = asked | {"request_id": "resp_chosen"}
    made = (await served.ask("POST", RESPONSES, json=chosen, headers=HERS)).json()["id"]
    assert made != "resp_chosen"
    for headers, status in ((HERS, 200), (MINE, 404)):
        read = await served.ask("GET", f"{RESPONSES}/{made}", headers=headers)
        again = asked | {"previous_response_id": made}
        went_on = await served.ask("POST", RESPONSES, json=again, headers=headers)
        assert (read.status, went_on.status) == (status, status)


@pytest.mark.parametrize(("served", "shares"), [(False, True), (True, False)], indirect=["served"])
async def test_a_prompt_is_in_the_cache_of_its_tenant_alone(served, shares):
    words = f"{'one' if shares else 'two'} " * 400
    body = {"messages": [{"role": "user", "content": words}], "max_tokens": 1}
    cached = []
    for headers in (HERS, HERS, MINE):
        answer = await served.chat(headers=headers, model=await model_of(served), **body)
        cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    first, again, others = (tokens > 0 for tokens in cached)
    assert (first, again, others) == (False, True, shares)
