"""G10: prefill::decode pairs in a whole simulated pool, with Kairos before them."""

import pytest

from kairos.core import Dispatch, Finished, StepCost
from kairos.simulate import CacheLink, KvLinks
from kairos.simulate.world import WorldEvent
from tests.support.simulate.worlds import MS, call, profile, ran, submission, told

# A token's cache is 100 bytes, which takes a µs, and a transfer 20 µs more.
LINK = CacheLink(gbit_s=0.8)


def pairs(submissions, prefills=1, decodes=1, seqs=4, **options):
    phases = {f"p{n}": "prefill" for n in range(prefills)}
    phases |= {f"d{n}": "decode" for n in range(decodes)}
    return ran(
        submissions,
        instances=dict.fromkeys(phases, profile(seqs=seqs)),
        phases=phases,
        links=KvLinks(dict.fromkeys(phases, LINK), 100.0),
        **options,
    )


def ways(log):
    commands = [each for record in log for each in record.commands]
    return {(c.prefill_id, c.instance_id) for c in commands if isinstance(c, Dispatch)}


def test_g10_a_workflow_on_a_pair_takes_what_is_computed_by_hand():
    world, log = pairs([submission("a", call(3), call(2, gap_ms=5))])

    # The prompt 1 ms; told a µs later, 10 tokens of cache are 10 µs and 20: 1.031. Then 3 ms.
    # The second call after 5 ms: likewise, and 2 ms.
    assert told(log, Finished) == [(4.031, "Finished", "a/0"), (12.062, "Finished", "a/1")]
    assert ways(log) == {("p0", "d0")}
    assert world.users.failed == {}


def many(count=60):
    return [submission(f"w{n}", call(n % 5 + 1, prompt=100), at=n // 3) for n in range(count)]


@pytest.mark.parametrize("placement", ["kairos", "round-robin", "least-kv"])
@pytest.mark.parametrize("fails", ["p0", "p1", "d0"])
def test_g10_nothing_is_lost_where_an_instance_of_a_pair_fails(fails, placement):
    world, log = pairs(
        many(),
        prefills=2,
        decodes=2,
        placement=placement,
        happenings=[WorldEvent(at_us=7 * MS + 500, what="fail", instance_id=fails)],
    )

    assert world.users.failed == {}
    assert {event[2] for event in told(log, Finished)} == {f"w{n}/0" for n in range(60)}
    assert len(world.balancer.ledger) == 0
    assert not world.balancer.ledger.prefills


def test_g10_without_prefill_instances_any_more_decode_instances_serve_whole_calls():
    world, log = pairs(many(), happenings=[WorldEvent(at_us=7 * MS, what="fail", instance_id="p0")])

    assert world.users.failed == {}
    assert ways(log) == {("p0", "d0"), (None, "d0")}


def test_g10_prefill_takes_the_prompts_off_what_decodes():
    """With prompts that cost as much as a hundred steps, beside answers that go on."""
    dear = profile(seqs=16, step=StepCost(fixed_us=MS, prefill_token_us=100))
    flows = [submission(f"w{n}", call(200, prompt=1000), at=120 * n) for n in range(12)]
    phases = {"a": "prefill", "b": "decode"}
    links = KvLinks(dict.fromkeys(phases, CacheLink(gbit_s=100)), 100.0)
    both, _ = ran(flows, instances={"a": dear, "b": dear}, placement="kairos")
    pair, _ = ran(
        flows, instances={"a": dear, "b": dear}, placement="kairos", phases=phases, links=links
    )

    def p95(world):
        return world.metrics.record()["e2e_s"]["p95"]

    assert p95(pair) < p95(both)
