"""Placements before real vLLM that runs out of memory, in the short form."""

import json
import subprocess
import sys

import pytest

from experiments.placements_vllm import BASELINE, DEFAULT, ENOUGH, QUICK
from tests.support.vllm import needs_vllm

COMMAND = (sys.executable, "-m", "experiments.placements_vllm", "--quick", "--json")
FAR_FEWER = 1 / 3
LIMIT_S = 600  # a machine that has other work, too

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(LIMIT_S + 60)]


@pytest.fixture(scope="module")
def found():
    """The experiment's status, its rows by placement, and what it said."""
    needs_vllm()
    done = subprocess.run(COMMAND, check=False, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout, done.stderr
    rows = {row["placement"]: row for row in json.loads(done.stdout)}
    return done.returncode, rows, done.stderr


def test_the_default_has_far_fewer_preemptions_than_round_robin(found):
    """At most a tenth is the aim, which the full form tells of; one run alone varies around it."""
    _, rows, said = found
    assert set(rows) == set(QUICK.placements)
    per_request = {name: row["preemptions"] / row["calls"] for name, row in rows.items()}
    assert per_request[BASELINE] >= ENOUGH, "the engines had memory enough"
    assert per_request[DEFAULT] <= FAR_FEWER * per_request[BASELINE], said


def test_all_placements_were_given_the_same_work(found):
    _, rows, _ = found
    assert len({(row["workflows"], row["calls"]) for row in rows.values()}) == 1
    assert {row["prompt_tokens_off"] for row in rows.values()} == {0}
    # The last block or two of a prompt may have been in a cache, or not.
    needed = [row["needed_tokens"] + row["cached_tokens"] for row in rows.values()]
    assert max(needed) - min(needed) <= 0.01 * max(needed)


def test_what_is_computed_again_is_what_was_preempted(found):
    _, rows, _ = found
    for row in rows.values():
        longest = row["preemptions"] * row["limits"]["max_model_len"]
        assert 0 <= row["recomputed_tokens"] <= longest
    assert rows[BASELINE]["recomputed_tokens"] > 0
