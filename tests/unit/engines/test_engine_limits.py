"""What engines answer of their limits, and what of an answer that says something else."""

import json

import pytest

from kairos.engines import ModelCard, model_cards
from kairos.engines.kinds import (
    EngineLimits,
    llama_limits,
    merged,
    sglang_limits,
    vllm_limits,
)


def server_info(**scheduler):
    """As vLLM 0.32 says it, with much that is of no interest left out."""
    config = {"scheduler_config": scheduler, "cache_config": {"block_size": 32}}
    return json.dumps({"vllm_config": config, "vllm_env": {}, "system_env": {}}).encode()


def test_vllm_says_what_it_was_started_with():
    told = server_info(policy="priority", max_num_seqs=24, max_num_batched_tokens=2048)
    limits = EngineLimits(max_num_seqs=24, max_num_batched_tokens=2048, priority=True)
    assert vllm_limits(told, engines=1) == limits
    assert vllm_limits(told, engines=3).max_num_seqs == 72
    assert vllm_limits(server_info(policy="fcfs"), engines=1) == EngineLimits(priority=False)


@pytest.mark.parametrize("policy", [None, 1, "", "Priority", ["priority"], {}])
def test_an_order_that_is_not_known_is_not_told(policy):
    assert vllm_limits(server_info(policy=policy), engines=1) == EngineLimits()


@pytest.mark.parametrize("seqs", [0, -1, 1.5, "24", True, None, 1 << 40])
def test_a_number_of_calls_that_cannot_be_is_not_told(seqs):
    assert vllm_limits(server_info(max_num_seqs=seqs), engines=1) == EngineLimits()


def test_llama_says_its_slots_and_has_no_priorities():
    props = b'{"total_slots":4,"default_generation_settings":{"n_ctx":512}}'
    assert llama_limits(props) == EngineLimits(max_num_seqs=4, kv_tokens=2048, priority=False)


@pytest.mark.parametrize(
    "props",
    [
        b'{"total_slots":"4","default_generation_settings":{"n_ctx":512}}',
        b'{"total_slots":0,"default_generation_settings":{"n_ctx":512}}',
        b'{"total_slots":4,"default_generation_settings":{"n_ctx":-1}}',
        b'{"total_slots":true,"default_generation_settings":{"n_ctx":512}}',
        b'{"total_slots":4}',
    ],
)
def test_slots_that_cannot_be_are_not_told(props):
    assert llama_limits(props) == EngineLimits()


def sglang_info(**told):
    """As SGLang 0.5 says it, with much that is of no interest left out."""
    state = {"effective_max_running_requests_per_dp": 128, "memory_usage": {}}
    info = {
        "model_path": "qwen/qwen2.5-0.5b-instruct",
        "max_running_requests": None,
        "chunked_prefill_size": 8192,
        "page_size": 1,
        "disable_radix_cache": False,
        "max_total_num_tokens": 20480,
        "internal_states": [state],
    }
    return json.dumps(info | told).encode()


def test_sglang_says_what_it_runs_with():
    assert sglang_limits(sglang_info(), engines=1) == EngineLimits(
        max_num_seqs=128,
        max_num_batched_tokens=8192,
        kv_tokens=20480,
        priority=False,
        block_size=1,
        prefix_caching=True,
    )
    two = sglang_limits(
        sglang_info(internal_states=[{"effective_max_running_requests_per_dp": 128}] * 2), 1
    )
    assert (two.max_num_seqs, two.kv_tokens) == (256, 40960)


def test_what_sglang_does_not_tell_or_cannot_mean_is_not_told():
    told = sglang_limits(
        sglang_info(internal_states=None, chunked_prefill_size=-1, disable_radix_cache="no"), 1
    )
    assert told == EngineLimits(kv_tokens=20480, priority=False, block_size=1)
    assert sglang_limits(sglang_info(max_running_requests=64, internal_states=[]), 1) == (
        EngineLimits(64, 8192, 20480, priority=False, block_size=1, prefix_caching=True)
    )


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"{", b"\xff", b"[]", b"null", b"[" * 100_000),
        *(b'{"vllm_config":"text"}', b'{"vllm_config":{"scheduler_config":[]}}'),
    ],
)
def test_an_answer_that_says_something_else_tells_nothing(answer):
    assert vllm_limits(answer, engines=1) == llama_limits(answer) == EngineLimits()
    assert model_cards(answer) == {}


def test_a_model_is_shown_as_engines_have_it_the_smallest_where_they_differ():
    one = model_cards(
        b'{"data":[{"id":"m","max_model_len":4096},{"id":"ad","parent":"m","max_model_len":4096}]}'
    )
    two = model_cards(b'{"data":[{"id":"m","max_model_len":2048},{"id":"n"}]}')
    llama = model_cards(b'{"data":[{"id":"l","meta":{"n_ctx_train":8192}}]}')
    wrong = model_cards(b'{"data":[{"id":"m","max_model_len":"no","parent":7}]}')
    assert merged([one, two, llama, wrong]) == {
        "ad": ModelCard(4096, "m"),
        "l": ModelCard(8192),
        "m": ModelCard(2048),
        "n": ModelCard(),
    }
