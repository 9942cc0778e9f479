"""What is read out of the metrics of engines, and what of garbage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import InstanceStatus
from kairos.engines import read_metrics
from kairos.engines.engine_probe import MetricSample, Names

ONE, TWO = '{engine="0",model_name="m"}', '{engine="1",model_name="m"}'
VLLM = f"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{ONE} 5.0
vllm:num_requests_waiting{ONE} 3.0
vllm:num_requests_waiting_by_reason{{engine="0",model_name="m",reason="capacity"}} 2.0
vllm:num_requests_waiting_by_reason{{engine="0",model_name="m",reason="deferred"}} 1.0
vllm:kv_cache_usage_perc{ONE} 0.25
vllm:prefix_cache_queries_total{ONE} 1.2e+06
vllm:prefix_cache_queries_created{ONE} 1.79e+09
vllm:prefix_cache_hits_total{ONE} 400.0
vllm:prefix_cache_hits_created{ONE} 1.79e+09
vllm:external_prefix_cache_queries_total{ONE} 7.0
vllm:num_preemptions_total{ONE} 21.0
vllm:num_preemptions_created{ONE} 1.79e+09
vllm:request_num_preemptions_sum{ONE} 4.0
process_start_time_seconds 1.5e+09
"""
LLAMA = """# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
llamacpp:requests_deferred 7
llamacpp:kv_cache_usage_ratio 0.5
llamacpp:n_busy_slots_per_decode 1.5"""  # no newline at its end


def status(text):
    return read_metrics("i", text.encode()).status


def config(**labels):
    told = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"vllm:cache_config_info{{{told}}} 1.0\n"


def cache(*lines):
    return read_metrics("i", "".join(lines).encode()).cache


def test_llama_says_how_it_does():
    assert status(LLAMA) == InstanceStatus("i", kv_used=0.5, running=2, waiting=7)
    assert read_metrics("i", LLAMA.encode()).cache is None


def test_where_a_version_says_both_names_the_newer_one_counts_and_alone():
    both = "vllm:{}kv 9\nvllm:gpu_prefix_cache_hits_total 9\nvllm:prefix_cache_hits_total 5\n"
    assert status(both).cached_tokens == 5
    assert status("vllm:gpu_cache_usage_perc 1\nvllm:kv_cache_usage_perc 0.1\n").kv_used == 0.1


def test_engines_that_show_themselves_as_one_are_added_up():
    told = status(
        f"vllm:num_requests_running{ONE} 5\nvllm:num_requests_running{TWO} 2\n"
        f"vllm:num_preemptions_total{TWO} 3\nvllm:num_preemptions_total{ONE} 4\n"
        f"vllm:kv_cache_usage_perc{ONE} 0.5\nvllm:kv_cache_usage_perc{TWO} 1.0\n"
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 1\n'
        'vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 10\n'
        'vllm:num_requests_waiting_by_reason{engine="1",reason="capacity"} 2\n'
    )
    assert told == InstanceStatus("i", running=7, preemptions=7, kv_used=0.75, waiting_for_room=3)


@pytest.mark.parametrize(
    "value", ["NaN", "+Inf", "-Inf", "-1", "1e400", "1.5", "", "x", "1e15", "0x5", '"5"', "\u0663"]
)
def test_a_count_that_cannot_be_is_not_told(value):
    assert status(f"vllm:num_requests_running{ONE} {value}") is None
    # Of a sum, a part is not told either.
    sum_of_two = f"vllm:num_requests_running{TWO} 5\nvllm:num_requests_running{ONE} {value}\n"
    assert status(sum_of_two + "vllm:num_requests_waiting 1") == InstanceStatus("i", waiting=1)


@pytest.mark.parametrize("value", [0, 1])
def test_a_share_may_be_none_and_all(value):
    assert status(f"vllm:kv_cache_usage_perc{ONE} {value}").kv_used == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# vllm:num_requests_running 5",
        "# HELP vllm:num_requests_running 5\n",
        "vllm:num_requests_running_ever 5",
        "xvllm:num_requests_running 5",
        "vllm:num_requests_running",
        "vllm:num_requests_running{",
        'vllm:num_requests_running{engine="0"',
        'vllm:num_requests_waiting_by_reason{reason="deferred"} 5',
        "vllm:num_requests_waiting_by_reason 5",
        "<html>vllm:num_requests_running 5</html>",
    ],
)
def test_what_says_nothing_tells_nothing(text):
    assert status(text) is None


def test_the_samples_of_the_names_that_are_asked_for_are_read_with_their_labels():
    found = Names(("a", "a_b")).read_samples(
        b'a 1\na{x="1",y="\\"}"} 2 3\na_b\tNaN\na_c 4\nb 5\na{} z'
    )
    assert found["a"][:2] == [MetricSample({}, 1.0), MetricSample({"x": "1", "y": '\\"}'}, 2.0)]
    assert found["a"][2] == MetricSample({}, None)
    assert [str(each.value) for each in found["a_b"]] == ["nan"]
    assert found.keys() == {"a", "a_b"}


def test_a_text_of_endless_samples_says_nothing():
    assert status("vllm:num_requests_running 0\n" * 4_096) is not None
    assert status("vllm:num_requests_running 0\n" * 4_097) is None


@given(st.binary(max_size=200), st.integers(0, 600), st.integers(0, 600))
def test_garbage_is_never_an_error(garbage, start, length):
    text = (VLLM + config(num_gpu_blocks=9, block_size=16)).encode()
    told = read_metrics("i", text[:start] + garbage + text[start + length :]).status
    if told is not None:
        counts = (told.running, told.waiting, told.preemptions, told.queried_tokens)
        assert all(count is None or 0 <= count < 1 << 48 for count in counts)
        assert told.kv_used is None or 0 <= told.kv_used <= 1


def test_where_a_token_takes_several_places_the_size_in_tokens_is_the_size():
    labels = {"block_size": 16, "num_gpu_blocks": 100}
    assert cache(config(**labels, kv_cache_size_tokens=800)).kv_tokens == 800
    assert cache(config(**labels, kv_cache_size_tokens=1600)).kv_tokens == 1584
    assert cache(config(**labels, kv_cache_size_tokens="None")).kv_tokens == 1584
