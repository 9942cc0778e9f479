"""What profiles say is enough for a Kairos that begins anew to pack by."""

import pytest
from msgspec.structs import replace

from experiments.placements_vllm_workload import offered
from kairos.core import PLACEMENTS, POLICIES, ProfilesLearnt
from kairos.engines import load_profile
from kairos.simulate import World

WORKFLOWS, RATE_PER_S = 48, 32.0
# As quick as vLLM on a core with the model of `experiments.placements_vllm`, and its limits.
ENGINE = replace(
    load_profile("cpu-tiny"),
    step=replace(
        load_profile("cpu-tiny").step,
        fixed_us=18_000.0,
        decode_seq_us=1_800.0,
        prefill_token_us=800.0,
        prefill_seq_us=0.0,
    ),
    kv_tokens=39 * 32,
    block_size=32,
    max_num_seqs=48,
    max_num_batched_tokens=2048,
    max_model_len=768,
)


class Published:
    """All that was published, by the end."""

    def __init__(self):
        self.profiles, self.models = {}, {}

    def __call__(self, record):
        if isinstance(record.event, ProfilesLearnt):
            self.profiles |= {each.key: each for each in record.event.profiles}
            self.models |= {(each.tenant, each.app): each for each in record.event.models}


def world(submissions, placement, *observers):
    fleet = {"i1": ENGINE, "i2": ENGINE}
    return World(submissions, fleet, POLICIES["kairos"], PLACEMENTS[placement], observers=observers)


@pytest.fixture(scope="module")
def published():
    seen = Published()
    world(offered(WORKFLOWS, RATE_PER_S, 1000), "kairos", seen).run()
    assert {len(seen.profiles) > 10, seen.models != {}} == {True}
    return seen


def began_with(published, placement, seed):
    run = world(offered(WORKFLOWS, RATE_PER_S, seed), placement)
    profiles, models = published.profiles.values(), published.models.values()
    known = ProfilesLearnt(tuple(profiles), models=tuple(models))
    run.learner.restore(known)
    run._runtime.feed(known)
    run.run()
    return run.metrics.record()


def test_a_kairos_that_was_restarted_lets_engines_preempt_little_and_takes_no_longer(published):
    """Profiles of ten calls each: taken for all that there is, engines preempt every eighth."""
    found = {
        placement: [began_with(published, placement, seed) for seed in range(1, 9)]
        for placement in ("kairos", "round-robin")
    }
    preempted, took_s = (
        {name: sum(of(each) for each in records) / 8 for name, records in found.items()}
        for of in (lambda r: r["preemptions_per_call"], lambda r: r["e2e_s"]["mean"])
    )
    assert preempted["round-robin"] > 0.25
    # A margin of a tenth at most: a call that is preempted costs less than memory that stays idle.
    assert preempted["kairos"] < 0.5 * preempted["round-robin"]
    assert took_s["kairos"] < took_s["round-robin"]
