"""Profiles: what comes with Kairos, and what is refused."""

import tomllib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.engine_profile import EngineProfile, StepCost
from kairos.errors import InvalidFile, SetupError
from kairos.sim.engine import profiles

BYTES = 2  # of a weight, and of a key's or value's number, in bfloat16
MIB = 1 << 20


class Model(msgspec.Struct, frozen=True, kw_only=True):
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    mlp: int
    vocabulary: int

    @property
    def in_layers(self):
        head = self.hidden // self.heads
        attention = self.hidden * (2 * self.hidden + 2 * self.kv_heads * head)
        return self.layers * (attention + 3 * self.hidden * self.mlp)

    @property
    def embedding(self):
        return self.vocabulary * self.hidden

    @property
    def kv_bytes(self):
        return 2 * self.layers * self.kv_heads * (self.hidden // self.heads) * BYTES


class Card(msgspec.Struct, frozen=True, kw_only=True):
    bytes_per_s: float
    flop_per_s: float
    memory_mib: int
    # Shares of the peaks that are reached.
    bandwidth: float
    arithmetic: float
    attention: float
    activations_mib: float


LLAMA3_8B = Model(layers=32, hidden=4096, heads=32, kv_heads=8, mlp=14336, vocabulary=128256)
LLAMA2_13B = Model(layers=40, hidden=5120, heads=40, kv_heads=40, mlp=13824, vocabulary=32000)
A40 = Card(
    bytes_per_s=696e9, flop_per_s=149.7e12, memory_mib=46068,
    bandwidth=0.80, arithmetic=0.67, attention=0.5, activations_mib=1.2 * 1024,
)  # fmt: skip
H200 = Card(
    bytes_per_s=4.8e12, flop_per_s=989.4e12, memory_mib=143771,
    bandwidth=0.80, arithmetic=0.60, attention=0.5, activations_mib=2 * 1024,
)  # fmt: skip


def derived(card, model):
    read = card.bandwidth * card.bytes_per_s / 1e6  # bytes in a µs
    done = card.arithmetic * card.flop_per_s / 1e6  # FLOP in a µs
    attended = card.attention * card.flop_per_s / 1e6
    with_output = model.in_layers + model.embedding
    return {
        "weights_us": BYTES * with_output / read,
        "prefill_token_us": 2 * model.in_layers / done,
        "decode_seq_us": 2 * with_output / done,
        "kv_token_us": model.kv_bytes / read,
        "attention_us": 4 * model.layers * model.hidden / attended,
    }


def room_for_kv(card, model):
    weights = BYTES * (model.in_layers + 2 * model.embedding)
    free = 0.9 * card.memory_mib * MIB - weights - card.activations_mib * MIB
    return int(free / model.kv_bytes) // 16 * 16


@pytest.mark.parametrize(
    ("name", "card", "model"),
    [
        ("a40-llama3-8b", A40, LLAMA3_8B),
        ("a40-llama2-13b", A40, LLAMA2_13B),
        ("h200-llama3-8b", H200, LLAMA3_8B),
    ],
)
def test_a_derived_profile_is_what_the_shapes_and_the_card_give(name, card, model):
    found = profiles.profile(name)
    assert found.name == name
    assert not found.measured
    assert "derived" in found.source
    assert found.kv_tokens == room_for_kv(card, model)
    costs = msgspec.structs.asdict(found.step)
    assert costs.pop("fixed_us") == 1050.0
    assert costs.pop("prefill_seq_us") == 0.0
    assert costs == {key: pytest.approx(us, rel=1e-4) for key, us in derived(card, model).items()}


def test_the_shapes_are_those_of_the_models():
    assert LLAMA3_8B.in_layers + 2 * LLAMA3_8B.embedding == pytest.approx(8.03e9, rel=1e-3)
    assert LLAMA2_13B.in_layers + 2 * LLAMA2_13B.embedding == pytest.approx(13.02e9, rel=1e-3)
    assert (LLAMA3_8B.kv_bytes, LLAMA2_13B.kv_bytes) == (128 * 1024, 800 * 1024)


def test_every_profile_that_comes_with_kairos_can_be_read_and_says_where_it_is_from():
    assert {"a40-llama3-8b", "a40-llama2-13b", "h200-llama3-8b", "cpu-tiny"} <= set(
        profiles.names()
    )
    for name in profiles.names():
        found = profiles.profile(name)
        assert found.name == name
        assert found.source


def test_an_unknown_name_is_refused_with_the_names_that_there_are():
    with pytest.raises(SetupError, match=r"no profile 'b200'.*a40-llama2-13b, a40-llama3-8b"):
        profiles.profile("b200")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidFile, match="No such file"):
        profiles.profile(str(tmp_path / "mine.toml"))


GOOD = """
name = "mine"
source = "a test"
measured = true
kv_tokens = 1024
[step]
fixed_us = 10
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name = ", "Invalid value"),
        (GOOD.replace("kv_tokens", "kv_token"), r"kv_token`.*known are: name, .*kv_tokens"),
        (GOOD.replace("fixed_us", "fixed"), r"fixed`.*known are: fixed_us"),
        (GOOD.replace("[step]\nfixed_us = 10", ""), "missing required field `step`"),
        (GOOD.replace("true", '"yes"'), "Expected `bool`"),
        (GOOD.replace("1024", "0"), "kv_tokens is 0"),
        (GOOD.replace("1024", "15"), "less than one block"),
        (GOOD.replace("= 10\n", "= -10\n"), "fixed_us is -10"),
        (GOOD.replace("= 10\n", "= inf\n"), "fixed_us is inf"),
        (GOOD.replace("= 10\n", "= nan\n"), "fixed_us is nan"),
        (GOOD.replace("= 10\n", "= 1.1e9\n"), "fixed_us is 1100000000.0: give a time from 0 to"),
        ("call_us = 1e300\n" + GOOD, "call_us is 1e\\+300"),
        ("max_model_len = 1\n" + GOOD, "max_model_len is 1"),
        ("a = " + "[" * 5000, "nested too deep"),
        ("# " + "x" * (1 << 21), "more than a megabyte"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_with_what_is_wrong(tmp_path, text, problem):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InvalidFile, match=problem):
        profiles.profile(str(path))


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidFile, match="not TOML"):
        profiles.profile(str(path))


TEXTS = st.text(st.sampled_from('\\"\n\r\t\0\x7fax7 \N{EURO SIGN}') | st.characters(codec="utf-8"))
COSTS = st.floats(0, 1e9).map(lambda value: float(f"{value:.6g}"))
PROFILES = st.builds(
    EngineProfile,
    name=TEXTS,
    source=TEXTS,
    measured=st.booleans(),
    kv_tokens=st.integers(16, 10**9),
    prefix_caching=st.booleans(),
    scheduling=st.sampled_from(["fcfs", "priority"]),
    call_us=COSTS,
    step=st.builds(StepCost, **dict.fromkeys(StepCost.__struct_fields__, COSTS)),
)


@given(PROFILES)
def test_what_is_written_is_read_back(profile):
    written = profiles.to_toml(profile)
    assert msgspec.convert(tomllib.loads(written), EngineProfile) == profile
