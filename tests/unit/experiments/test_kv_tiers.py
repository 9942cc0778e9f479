"""H10: a prefix that is not there is computed, loaded or moved, whichever is first there."""

import pytest

from experiments.kv_tiers import KvChoice, KvTiers, choose, recompute_us
from kairos.capacity.hardware import Link
from kairos.core import EngineProfile, StepCost
from kairos.simulate import CacheLink, KvLinks
from tests.support.simulate.model import (
    EngineCall,
    HostTier,
    PromptPiece,
    SimulatedEngines,
    VirtualClock,
)

BYTES = 100.0  # of a token's cache


def profile(**cost):
    step = StepCost(**({"fixed_us": 10, "prefill_token_us": 5} | cost))
    return EngineProfile(
        name="test", source="", measured=False, step=step, kv_tokens=800, block_size=4,
        max_model_len=800,
    )  # fmt: skip


def link(bytes_per_us, latency_us=20.0, overlapped=0.0):
    return Link(gbit_s=bytes_per_us * 8e-3, latency_s=latency_us * 1e-6, overlapped=overlapped)


def test_h10_recomputing_is_arithmetic_with_attention_in_steps_that_read_weights():
    assert recompute_us(profile(), 100) == 10 + 500
    assert recompute_us(profile(weights_us=700), 100) == 10 + 700
    assert recompute_us(profile(attention_us=0.1), 100, held=50) == pytest.approx(
        10 + 500 + 0.1 * (100 * 50 + 100 * 101 / 2)
    )
    assert recompute_us(profile(), 4_096) == 2 * 10 + 5 * 4_096
    assert recompute_us(profile(), 0) == 0


def test_h10_the_first_of_recompute_load_and_move_by_hand():
    tiers = KvTiers(bytes_per_token=BYTES, host=link(50), peer=link(100, latency_us=150))
    engine = profile()
    # 4 tokens: 30 µs of arithmetic, 28 from the host, 154 from the peer.
    assert choose(engine, tiers, 4, in_host=4, at_peer=4) == ("load", pytest.approx(28))
    # 2 tokens: 20, 24, 152.
    assert choose(engine, tiers, 2, in_host=2, at_peer=2) == ("recompute", 20)
    # 400 tokens: 2,010, 820, 550.
    assert choose(engine, tiers, 400, in_host=400, at_peer=400) == ("move", pytest.approx(550))
    # The host has half of it: 20 + 200 * 2 and 10 + 200 * 5 beside.
    assert choose(engine, tiers, 400, in_host=200) == ("load", pytest.approx(1_430))
    assert choose(engine, tiers, 400) == KvChoice("recompute", 2_010)
    alone = KvTiers(bytes_per_token=BYTES)
    assert choose(engine, alone, 400, in_host=400, at_peer=400).action == "recompute"


def test_h10_what_lies_beside_computing_does_not_count():
    tiers = KvTiers(bytes_per_token=BYTES, peer=link(10, overlapped=0.9))
    assert choose(profile(), tiers, 100, at_peer=100) == ("move", pytest.approx(20 + 100))


def call(name, prompt):
    return EngineCall(id=name, prompt=(PromptPiece(*prompt),), completion_tokens=1)


def simulated_us(tokens, host, peer):
    """Until a prompt's first token, where its prefix is nowhere, in the host, at a peer: beside
    that of a step."""
    found = {}
    for how in ("recompute", "load", "move"):
        clock, seen = VirtualClock(), []
        rates = CacheLink(gbit_s=peer * 8e-3, host_gb_s=host * 1e-3)
        links = KvLinks(dict.fromkeys(("engine", "peer"), rates), BYTES)
        engines = SimulatedEngines(clock, seen.append, links)
        engines.start("engine", profile(), HostTier(400) if how == "load" else None)
        engines.start("peer", profile())
        at = 100_000
        if how == "load":  # computed before, and then out of the engine's own memory
            clock.call_at(0, lambda e=engines: e.add("engine", call("before", ("prefix", tokens))))
            clock.call_at(50_000, lambda e=engines: e.add("engine", call("other", ("x", 799))))
        asked = call("asked", ("prefix", tokens))
        if how == "move":
            clock.call_at(0, lambda e=engines: e.add("peer", call("before", ("prefix", tokens))))
            clock.call_at(at, lambda e=engines, a=asked: e.add_pair("peer", "engine", a))
        else:
            clock.call_at(at, lambda e=engines, a=asked: e.add("engine", a))
        clock.run()
        [ended] = [each.at for each in seen if each.call_id == "asked" and each.what == "finished"]
        found[how] = ended - at
    return found


@pytest.mark.parametrize("tokens", [16, 64, 400])
@pytest.mark.parametrize(("host", "peer"), [(1_000, 10), (10, 1_000), (5, 5)])
def test_h10_what_is_chosen_is_the_quickest_in_the_simulator_too(tokens, host, peer):
    tiers = KvTiers(bytes_per_token=BYTES, host=link(host), peer=link(peer))
    chosen = choose(profile(), tiers, tokens, in_host=tokens, at_peer=tokens)
    took = simulated_us(tokens, host, peer)
    assert chosen.action == min(took, key=took.__getitem__), took
