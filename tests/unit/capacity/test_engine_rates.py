"""G6: rates from data sheets, as of the profiles that come with Kairos; what parallelism does."""

import math
from pathlib import Path

import msgspec
import pytest

from experiments.published import AIM, PUBLISHED, derived_ms, lines
from kairos.capacity.engine_rates import derived, expert_layouts, layouts, measured_rates
from kairos.capacity.hardware_options import load_catalogue
from kairos.core import SetupError
from kairos.engines import load_profile

FOUND = load_catalogue()
H100 = FOUND.accelerator_named("h100")
SMALL, LARGE = FOUND.model_named("llama-3-8b"), FOUND.model_named("llama-3-70b")


@pytest.mark.parametrize(
    ("device", "model", "name"),
    [
        ("a40", "llama-3-8b", "a40-llama3-8b"),
        ("a40", "llama-2-13b", "a40-llama2-13b"),
        ("h200", "llama-3-8b", "h200-llama3-8b"),
    ],
)
def test_the_catalogue_gives_what_the_derived_profiles_have(device, model, name):
    rates = derived(FOUND.accelerator_named(device), FOUND.model_named(model))
    shipped = measured_rates(load_profile(name))
    for field in ("call_s", "fixed_s", "weights_s", "prefill_token_s", "decode_seq_s", "kv_token_s",
                  "attention_s"):  # fmt: skip
        assert getattr(rates, field) == pytest.approx(getattr(shipped, field), rel=1e-3), field
    assert rates.kv_tokens == pytest.approx(shipped.kv_tokens, rel=2e-3)
    assert rates.max_num_seqs == shipped.max_num_seqs


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda each: f"{each.device}-{each.callers}")
def test_published_times_per_token_are_within_30_percent_or_explained(published):
    off = derived_ms(published) / published.ms - 1
    assert (abs(off) <= AIM) is not bool(published.why_off)
    assert off < AIM  # nowhere is the planner slower


def test_the_page_on_hardware_has_the_table_of_published_times():
    page = (Path(__file__).parents[3] / "docs/research/hardware.md").read_text()
    assert "\n".join(lines()) in page


def test_g6_the_batch_is_as_large_as_memory_and_the_time_per_token_allow():
    rates = derived(H100, SMALL)
    by_memory = rates.largest_batch(4096)
    assert by_memory == int(rates.kv_tokens / 4096)
    in_time = rates.largest_batch(4096, 0.02)
    assert rates.step_s(in_time, 4096) <= 0.02 < rates.step_s(in_time + 1, 4096)
    assert rates.largest_batch(4096, 1e-3) == 0
    assert rates.largest_batch(rates.kv_tokens + 1) == 0


def test_g6_tensor_parallelism_divides_and_pays_for_exchanges():
    one, four = derived(H100, SMALL), derived(H100, SMALL, tensor=4)
    assert four.weights_s == pytest.approx(one.weights_s / 4)
    assert four.kv_tokens > 4 * one.kv_tokens
    assert four.exchange_s == pytest.approx(2 * 32 * 1.5 * 4096 * 2 / (0.8 * 450e9))
    assert four.fixed_s == pytest.approx(one.fixed_s + 64 * 10e-6)
    assert one.exchange_s == 0


def test_g6_pipeline_parallelism_has_several_batches_under_way_and_none_is_quicker():
    one, two = derived(H100, SMALL), derived(H100, SMALL, pipeline=2)
    assert (two.stages, two.devices) == (2, 2)
    assert two.step_s(8, 1000) == pytest.approx(one.step_s(8, 1000) + 20e-6)
    assert two.largest_batch(2000) > 2 * one.largest_batch(2000)


def test_g6_expert_parallelism_divides_experts_and_copies_all_else():
    mixture = FOUND.model_named("qwen3-235b-a22b")
    h200 = FOUND.accelerator_named("h200")
    tensor, expert = derived(h200, mixture, tensor=8), derived(h200, mixture, expert=8)
    assert (expert.devices, expert.stages, expert.expert_parallel) == (8, 1, True)
    assert tensor.expert_parallel is False
    rest = mixture.layer_weights(active=False) + mixture.embedding - mixture.expert_weights
    read = 0.8 * h200.bandwidth_gb_s * 1e9
    assert expert.weights_s == pytest.approx(2 * (rest + mixture.expert_weights / 8) / read)
    assert tensor.weights_s == pytest.approx(2 * (rest + mixture.expert_weights) / 8 / read)
    # Four key-value heads over eight devices: tensor parallelism has each cache twice.
    assert tensor.kv_token_s == pytest.approx(2 * expert.kv_token_s)
    assert expert.kv_tokens > tensor.kv_tokens
    # One sequence reads more, many sequences send less and have more room.
    assert expert.step_s(1, 2000) > tensor.step_s(1, 2000)
    assert expert.step_s(1000, 2000) < tensor.step_s(1000, 2000)


@pytest.mark.parametrize(
    ("model", "layout", "problem"),
    [
        ("llama-3-8b", {"expert": 2}, "has no 2 equal parts of its experts"),
        ("mixtral-8x7b", {"expert": 3}, "has no 3 equal parts of its experts"),
        ("mixtral-8x7b", {"expert": 2, "tensor": 2}, "has no 2 equal parts"),
        ("mixtral-8x7b", {"expert": 16}, "8 devices in a chassis: 16"),
    ],
)
def test_experts_that_cannot_be_parted_so_are_refused(model, layout, problem):
    with pytest.raises(SetupError, match=problem):
        derived(H100, FOUND.model_named(model), **layout)


def test_g6_expert_layouts_are_powers_of_two_that_divide_the_experts():
    assert list(expert_layouts(H100, FOUND.model_named("mixtral-8x7b"), 16)) == [2, 4, 8]
    assert list(expert_layouts(H100, FOUND.model_named("qwen3-30b-a3b"), 4)) == [2, 4]
    assert list(expert_layouts(H100, SMALL, 8)) == []


@pytest.mark.parametrize(("prompt", "batch"), [(8, 8), (1, 15), (15, 1)])
def test_a_step_reads_the_experts_that_tokens_of_prompts_and_of_answers_meet(prompt, batch):
    """While reading takes longer than arithmetic, it does not matter whose the tokens are."""
    rates = derived(H100, FOUND.model_named("qwen3-30b-a3b"))
    mixed_s = rates.beside_s(batch, 0, prompt, 0) - rates.prefill_seq_s
    assert mixed_s == pytest.approx(rates.step_s(16, 0))
    assert rates.step_s(1, 0) < 0.8 * mixed_s


def test_a_prompt_of_sound_passes_the_encoder_first():
    hears = FOUND.model_named("voxtral-mini-3b")
    deaf = msgspec.structs.replace(hears, encoder=None)
    with_it, without = derived(H100, hears), derived(H100, deaf)
    more = 2 * 637e6 * 4 / (0.6 * 989.4e12)
    assert with_it.prefill_token_s == pytest.approx(without.prefill_token_s + more)
    assert with_it.decode_seq_s == without.decode_seq_s
    assert with_it.weights_s == without.weights_s  # a step that decodes reads no encoder
    assert with_it.kv_tokens < without.kv_tokens


def test_a_large_batch_reads_all_experts_and_a_single_token_few():
    mixture = FOUND.model_named("qwen3-30b-a3b")
    rates = derived(H100, mixture)
    assert rates.weights_read_s(1) == pytest.approx(
        2 * (mixture.layer_weights(active=True) + mixture.embedding) / (0.8 * 3.35e12), rel=0.01
    )
    assert rates.weights_read_s(1000) == pytest.approx(rates.weights_s, rel=1e-6)


def test_what_does_not_fit_or_does_not_exist_is_refused():
    with pytest.raises(SetupError, match="llama-3-70b does not fit on 1 x h100"):
        derived(H100, LARGE)
    assert derived(H100, LARGE, tensor=2).kv_tokens > 0
    with pytest.raises(SetupError, match="8 devices in a chassis: 16"):
        derived(H100, LARGE, tensor=16)
    with pytest.raises(SetupError, match="does not compute in fp4"):
        derived(H100, SMALL, precision="fp4")


def test_g6_layouts_are_powers_of_two_within_a_chassis():
    assert list(layouts(H100, 4)) == [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)]
    alone = msgspec.structs.replace(H100, scale_up_devices=1)
    assert list(layouts(alone, 2)) == [(1, 1), (1, 2)]


def test_no_time_per_token_is_asked_for_unless_it_is():
    assert derived(H100, SMALL).largest_batch(100, math.inf) == 1024
