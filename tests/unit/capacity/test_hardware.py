"""The catalogue: where its figures come from, that they are right, and what is refused."""

import pytest

from kairos.capacity.hardware_options import load_catalogue, read_catalogue
from kairos.core import InvalidFile

FOUND = load_catalogue()


@pytest.mark.parametrize(("name", "billions"), [("mixtral-8x7b", 12.9), ("qwen3-30b-a3b", 3.3)])
def test_a_token_meets_so_much_of_a_mixture_of_experts(name, billions):
    model = FOUND.model_named(name)
    met = model.layer_weights(active=True) + 2 * model.embedding
    assert met / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3-8b", 8.03),
        ("llama-3-70b", 70.6),
        ("llama-2-13b", 13.0),
        ("mistral-7b", 7.25),
        ("mixtral-8x7b", 46.7),
        ("qwen2.5-7b", 7.62),
        ("qwen2.5-32b", 32.8),
        ("qwen3-8b", 8.19),
        ("qwen3-30b-a3b", 30.5),
        ("qwen3-235b-a22b", 235.1),
        ("gpt-oss-120b", 116.8),
        ("qwen3-embedding-8b", 7.57),
        ("qwen3-reranker-0.6b", 0.596),
        ("voxtral-mini-3b", 4.68),
    ],
)
def test_a_models_shapes_add_up_to_the_size_that_its_makers_state(name, billions):
    assert FOUND.model_named(name).weights / 1e9 == pytest.approx(billions, rel=0.03)


def test_the_kv_cache_of_a_token_is_as_large_as_is_known():
    assert FOUND.model_named("llama-3-8b").kv_bytes_per_token() == 128 * 1024
    assert FOUND.model_named("llama-3-70b").kv_bytes_per_token() == 320 * 1024
    assert FOUND.model_named("llama-2-13b").kv_bytes_per_token() == 800 * 1024
    assert FOUND.model_named("qwen3-30b-a3b").kv_bytes_per_token() == 96 * 1024


MINE = """
[[accelerator]]
name = "mine"
vendor = "me"
memory_gb = 24
bandwidth_gb_s = 1000
tflops = { bf16 = 100 }
watts = 200
source = "measured"
date = "2026-11"
rented = { usd = 1.5, source = "my cloud", date = "2026-11" }
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (MINE.replace("memory_gb", "memory"), r"field `memory`.*known are: name, .*memory_gb"),
        (MINE.replace("24", "-24"), "mine: memory_gb is -24; give more than 0"),
        (MINE.replace("1000", "nan"), "mine: bandwidth_gb_s is nan"),
        (MINE.replace("bf16", "fp4"), r"mine: tflops.fp4: known are bf16, fp8"),
        (MINE.replace("= 100 }", "= inf }"), r"mine: tflops.bf16 is inf"),
        (MINE.replace('"measured"', '""'), "mine: source and date say where"),
        (MINE.replace("usd = 1.5", "usd = -1"), "mine: a price has usd"),
        (MINE + "reached = { bandwidth = 1.2 }", "mine: reached.bandwidth is 1.2"),
        (MINE + 'kind = "cpu"', "mine: a cpu has cores"),
        (MINE.replace("200", '"much"'), r"Expected `float`, got `str`.*accelerator\[0\].watts"),
        ("[[accelerator]]", "missing required field `name`"),
        ("[[gpu]]", r"unknown field `gpu`; known are: accelerator, model"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_catalogue_is_refused_with_the_field(tmp_path, text, problem):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InvalidFile, match=problem):
        read_catalogue(path)
