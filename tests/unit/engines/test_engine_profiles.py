"""Profiles: what comes with Kairos, and what is refused."""

import tomllib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import EngineProfile, InvalidFile, SetupError, StepCost
from kairos.engines import engine_profiles as profiles

BYTES = 2  # of a weight, and of a key's or value's number, in bfloat16


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


LLAMA3_8B = Model(layers=32, hidden=4096, heads=32, kv_heads=8, mlp=14336, vocabulary=128256)
LLAMA2_13B = Model(layers=40, hidden=5120, heads=40, kv_heads=40, mlp=13824, vocabulary=32000)


def test_the_shapes_are_those_of_the_models():
    assert LLAMA3_8B.in_layers + 2 * LLAMA3_8B.embedding == pytest.approx(8.03e9, rel=1e-3)
    assert LLAMA2_13B.in_layers + 2 * LLAMA2_13B.embedding == pytest.approx(13.02e9, rel=1e-3)
    assert (LLAMA3_8B.kv_bytes, LLAMA2_13B.kv_bytes) == (128 * 1024, 800 * 1024)


def test_an_unknown_name_is_refused_with_the_names_that_there_are():
    with pytest.raises(SetupError, match=r"no profile 'b200'.*a40-llama2-13b, a40-llama3-8b"):
        profiles.load_profile("b200")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidFile, match="No such file"):
        profiles.load_profile(str(tmp_path / "mine.toml"))


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
        profiles.load_profile(str(path))


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
    written = profiles.profile_to_toml(profile)
    assert msgspec.convert(tomllib.loads(written), EngineProfile) == profile
