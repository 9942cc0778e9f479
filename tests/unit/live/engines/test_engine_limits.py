"""What engines answer of their limits, and what of an answer that says something else."""

import json

import pytest

from kairos.live.engines.engine_limits import EngineLimits, llama_limits, model_limits, vllm_limits


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


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"{", b"\xff", b"[]", b"null", b"[" * 100_000),
        *(b'{"vllm_config":"text"}', b'{"vllm_config":{"scheduler_config":[]}}'),
    ],
)
def test_an_answer_that_says_something_else_tells_nothing(answer):
    assert vllm_limits(answer, engines=1) == llama_limits(answer) == EngineLimits()
    assert model_limits(answer) == {}
