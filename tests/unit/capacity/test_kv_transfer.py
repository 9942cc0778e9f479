"""G7: the sizes of KV caches, and the links that a prefill::decode pair needs."""

import pytest

from kairos.capacity.hardware import GBIT, Link, transfer_s
from kairos.capacity.hardware_options import load_catalogue

SMALL, LARGE = (load_catalogue().model_named(name) for name in ("llama-3-8b", "llama-3-70b"))
TOKENS = 32 * 1024


def test_g7_the_size_is_that_of_equation_3():
    # 2 * layers * d_model * N_kv / N_heads * ISL * BS * BPE
    assert (
        SMALL.kv_bytes_per_token() * TOKENS == 2 * 32 * 4096 * 8 / 32 * TOKENS * 1 * 2 == 4 * 2**30
    )
    assert (
        LARGE.kv_bytes_per_token() * TOKENS == 2 * 80 * 8192 * 8 / 64 * TOKENS * 1 * 2 == 10 * 2**30
    )
    assert 4 * SMALL.kv_bytes_per_token(1) * TOKENS == 8 * 2**30


def test_g7_at_32k_tokens_8b_and_20_ms_one_decode_gpu_needs_1718_gbit_per_s():
    """Equation 2: the cache has to come within one token."""
    need = SMALL.kv_bytes_per_token() * TOKENS / 0.020
    assert need / GBIT == pytest.approx(1717.99, abs=0.01)
    assert need / GBIT > 4 * 400  # the paper finds 200 to 400 enough


def test_g7_a_prefill_gpu_has_the_time_to_the_first_token_to_send():
    """Equation 1: the cache has to leave while the next is made."""
    assert SMALL.kv_bytes_per_token() * TOKENS / 0.250 / GBIT == pytest.approx(137.44, abs=0.01)


def test_a_transfer_takes_its_bytes_over_all_links_less_what_lies_beside_prefill():
    link = Link(gbit_s=400, latency_s=0.001)
    assert transfer_s(50e9, link) == pytest.approx(1.001)
    assert transfer_s(50e9, link, devices=4) == pytest.approx(0.251)
    layered = Link(gbit_s=400, latency_s=0.001, overlapped=31 / 32)
    assert transfer_s(50e9, layered) == pytest.approx(0.001 + 1 / 32)
