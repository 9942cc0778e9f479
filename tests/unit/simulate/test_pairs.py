"""G10: prefill::decode pairs, links and lower tiers in the engine model; cases worked out by hand.

Where nothing else is said, a step takes 10 µs, a block has four tokens, a token's cache 100 bytes,
a link 100 bytes a µs and a latency of 20 µs. A fetch begins in the µs after it was decided, so that
all that is told of that instant was told.
"""

import pytest

from kairos.core import EngineProfile, InvalidRequest, SetupError, StepCost
from kairos.simulate import CacheLink, KvLinks
from kairos.simulate.clock import VirtualClock
from kairos.simulate.engine.memory import HostTier
from kairos.simulate.engine.sequence import EngineCall
from kairos.simulate.engines import SimulatedEngines
from kairos.simulate.workload.prompt import PromptPiece

LINK = CacheLink(gbit_s=0.8, host_gb_s=0.1)
BYTES = 100.0  # of a token
SLOW = StepCost(fixed_us=10, prefill_token_us=5)


def profile(cost=None, **changes):
    settings = {"kv_tokens": 400, "block_size": 4, "max_model_len": 400} | changes
    cost = cost or StepCost(fixed_us=10)
    return EngineProfile(name="test", source="", measured=False, step=cost, **settings)


class Pool:
    def __init__(self, tiers=None, links=None, **engines):
        """`engines`: profiles by name; `tiers`: blocks of their hosts, by name."""
        self.clock, self.seen = VirtualClock(), []
        links = dict.fromkeys(engines, LINK) | (links or {})
        self.links = KvLinks(links, BYTES)
        self.engines = SimulatedEngines(self.clock, self.seen.append, self.links)
        for name, each in engines.items():
            tier = HostTier(tiers[name]) if name in (tiers or {}) else None
            self.engines.start(name, each, tier)

    def at(self, instant, what, *arguments):
        self.clock.call_at(instant, lambda: what(*arguments))

    def pair(self, instant, call, prefill="p", decode="d"):
        self.at(instant, self.engines.add_pair, prefill, decode, call)

    def run(self):
        self.clock.run()
        return [(each.call_id, each.what, each.at) for each in self.seen]

    def free(self, name):
        engine = self.engines._running[name].engine
        return engine.used_blocks == 0


def call(name, prompt, answer):
    pieces = [(name, prompt)] if isinstance(prompt, int) else prompt
    return EngineCall(
        id=name, prompt=tuple(PromptPiece(*each) for each in pieces), completion_tokens=answer
    )


def test_g10_a_pair_takes_the_prompt_the_transfer_of_its_blocks_and_the_steps_of_its_answer():
    pool = Pool(p=profile(), d=profile())
    pool.pair(5, call("a", 10, 3))

    # The prompt: 5 to 15. Its 10 tokens are 3 blocks, 1200 bytes: 12 µs and 20, from 16 to 48.
    # Then the prompt's last token is computed again, and two more of the answer.
    assert pool.run() == [("a", "first_token", 58), ("a", "finished", 78)]
    assert pool.links.bytes_moved == 1200
    assert pool.free("p")
    assert pool.free("d")


def test_g10_instances_of_a_pair_have_their_own_speeds():
    quick = profile(StepCost(fixed_us=1, prefill_token_us=2, decode_seq_us=100))
    frugal = profile(StepCost(fixed_us=7, prefill_token_us=1000, decode_seq_us=3))
    pool = Pool(p=quick, d=frugal)
    pool.pair(0, call("a", 8, 3))

    # 1 + 8 x 2 = 17; 800 bytes from 18 to 46; then 7 + 1000 for one token again, and 2 x (7 + 3).
    assert pool.run() == [("a", "first_token", 1053), ("a", "finished", 1073)]


@pytest.mark.parametrize(
    ("change", "first_token"),
    [
        ({}, 58 - 5),  # 16 - 5 + 12 + 20 + 10
        ({"gbit_s": 1.6}, 58 - 5 - 6),  # twice as quick on both sides
        ({"latency_us": 100.0}, 58 - 5 + 80),
        ({"overlapped": 0.75}, 58 - 5 - 9),  # layer by layer: a quarter is left at the end
    ],
)
def test_g10_a_transfer_takes_as_long_as_its_link_says(change, first_token):
    link = CacheLink(**({"gbit_s": 0.8} | change))
    pool = Pool(links={"p": link, "d": link}, p=profile(), d=profile())
    pool.pair(0, call("a", 10, 1))

    assert pool.run()[0] == ("a", "first_token", first_token)


def test_g10_a_transfer_goes_at_the_rate_of_the_slower_end():
    pool = Pool(links={"p": CacheLink(gbit_s=8)}, p=profile(), d=profile())
    pool.pair(5, call("a", 10, 3))

    assert pool.run()[-1] == ("a", "finished", 78)


def test_g10_caches_that_come_to_one_instance_come_one_after_the_other():
    pool = Pool(p=profile(), q=profile(), d=profile())
    pool.pair(5, call("a", 10, 1))
    pool.pair(5, call("b", 10, 1), prefill="q")

    # Both could be sent from 16 on: a until 28, b until 40, each seen 20 later; a's step ends at
    # 58, b's follows at once.
    assert pool.run() == [
        *[("a", "first_token", 58), ("a", "finished", 58)],
        *[("b", "first_token", 70), ("b", "finished", 70)],
    ]


def test_g10_only_what_the_decode_instance_does_not_find_is_moved():
    pool = Pool(p=profile(), d=profile())
    shared = [("system", 8), ("a", 4)]
    pool.pair(0, call("a", shared, 1))
    pool.pair(1000, call("b", [("system", 8), ("b", 4)], 1))
    pool.run()

    assert pool.links.bytes_moved == 1200 + 400
    assert pool.seen[-1].cached_tokens == 8  # as the prefill instance found them


def test_g10_decoding_goes_on_while_a_cache_is_under_way():
    pool = Pool(p=profile(), d=profile())
    pool.at(0, pool.engines.add, "d", call("there", 4, 9))
    pool.pair(5, call("a", 10, 2))
    found = pool.run()

    assert ("there", "finished", 90) in found  # nine steps of ten
    # Decided at 20 (a step begins), 12 + 20 more from 21: 53; its step begins at 60.
    assert ("a", "first_token", 70) in found


def test_g10_the_prefill_instance_keeps_a_cache_until_it_was_read():
    pool = Pool(p=profile(kv_tokens=16), d=profile())
    pool.pair(5, call("a", 10, 1))
    pool.pair(6, call("b", 10, 1))

    # b's prompt has no room before a's blocks were read, at 48. Then 10 until 58, 33, and 10.
    assert pool.run()[-1] == ("b", "finished", 101)
    assert pool.free("p")


def test_g10_a_decode_instance_without_room_fetches_once_there_is():
    pool = Pool(p=profile(), d=profile(kv_tokens=16))
    pool.at(0, pool.engines.add, "d", call("there", 8, 8))
    pool.pair(5, call("a", 10, 1))

    assert pool.run() == [
        ("there", "first_token", 10),
        ("there", "finished", 80),
        ("a", "first_token", 123),  # decided at 80; 81 + 12 + 20 + 10
        ("a", "finished", 123),
    ]


def test_g10_prompts_do_not_delay_the_answers_of_others_on_the_decode_instance():
    alone, paired = Pool(e=profile(SLOW)), Pool(p=profile(SLOW), d=profile(SLOW))
    alone.at(0, alone.engines.add, "e", call("there", 4, 20))
    paired.at(0, paired.engines.add, "d", call("there", 4, 20))
    alone.at(50, alone.engines.add, "e", call("long", 200, 1))
    paired.pair(50, call("long", 200, 1))

    ends = [
        next(at for name, what, at in pool.run() if (name, what) == ("there", "finished"))
        for pool in (alone, paired)
    ]
    # 30 for its own prompt and 19 steps of ten; beside the long prompt 1000 more, or 5 for its
    # last token.
    assert ends == [220 + 1000, 220]


def test_g10_the_second_engine_computes_the_prompt_where_the_first_one_fails():
    pool = Pool(p=profile(), d=profile())
    pool.pair(5, call("a", 10, 3))
    pool.at(9, lambda: lost.update(pool.engines.crash("p")))
    lost = {}

    assert pool.run() == [("a", "first_token", 19), ("a", "finished", 39)]
    assert lost == {}


def test_g10_a_cache_that_is_lost_under_way_is_computed_again():
    pool = Pool(p=profile(), d=profile())
    pool.pair(5, call("a", 10, 3))
    pool.at(30, pool.engines.crash, "p")

    assert pool.run() == [("a", "first_token", 58), ("a", "finished", 78)]  # known at 48
    assert pool.free("d")


def test_an_engine_to_which_a_pairs_call_will_come_is_not_stopped_as_empty():
    pool = Pool(p=profile(), d=profile())
    pool.pair(5, call("a", 10, 3))
    pool.at(9, lambda: stopped.append(pool.engines.stop_if_empty("d")))
    pool.at(90, lambda: stopped.append(pool.engines.stop_if_empty("d")))
    stopped = []

    assert pool.run() == [("a", "first_token", 58), ("a", "finished", 78)]
    assert stopped == [False, True]


@pytest.mark.parametrize("at", [9, 30, 60])
def test_g10_a_call_is_lost_with_the_second_engine_and_frees_the_first(at):
    pool = Pool(p=profile(), d=profile())
    pool.pair(5, call("a", 10, 3))
    pool.at(at, lambda: lost.update(pool.engines.crash("d")))
    lost = {}
    pool.run()

    assert lost == {"a": at // 60}  # generated
    assert pool.free("p")


@pytest.mark.parametrize("at", [9, 30, 60])
def test_a_pair_that_nobody_waits_for_any_more_leaves_nothing_behind(at):
    pool = Pool(p=profile(), d=profile())
    pool.pair(5, call("a", 10, 3))
    pool.at(at, pool.engines.abort, "d", "a")

    assert all(what != "finished" for _, what, _ in pool.run())
    assert pool.free("p")
    assert pool.free("d")


def test_a_call_that_the_second_engine_cannot_serve_is_refused_at_once():
    pool = Pool(p=profile(), d=profile(max_model_len=12))

    with pytest.raises(InvalidRequest, match="takes 12"):
        pool.engines.add_pair("p", "d", call("a", 10, 3))
    assert pool.run() == []


def test_g10_a_lower_tier_gives_back_what_was_evicted_at_the_rate_of_the_host():
    """The second call of a conversation, after another has taken all the room."""
    pool = Pool(tiers={"e": 100}, e=profile(SLOW, kv_tokens=36))
    pool.at(0, pool.engines.add, "e", call("a", 16, 1))
    pool.at(1000, pool.engines.add, "e", call("other", 35, 1))
    pool.at(2000, pool.engines.add, "e", call("b", [("a", 16), ("b", 4)], 1))

    # 4 blocks, 1600 bytes at 100 a µs and a latency of 20, from 2001; then 10 + 4 x 5.
    assert pool.run()[-1] == ("b", "finished", 2001 + 16 + 20 + 30)
    assert pool.seen[-1].cached_tokens == 16


def test_g10_without_a_lower_tier_it_is_computed_again():
    pool = Pool(e=profile(SLOW, kv_tokens=36))
    pool.at(0, pool.engines.add, "e", call("a", 16, 1))
    pool.at(1000, pool.engines.add, "e", call("other", 35, 1))
    pool.at(2000, pool.engines.add, "e", call("b", [("a", 16), ("b", 4)], 1))

    assert pool.run()[-1] == ("b", "finished", 2000 + 10 + 20 * 5)


def test_g10_a_lower_tier_forgets_what_was_used_longest_ago():
    pool = Pool(tiers={"e": 9}, e=profile(SLOW, kv_tokens=36))
    pool.at(0, pool.engines.add, "e", call("a", 16, 1))
    pool.at(1000, pool.engines.add, "e", call("other", 35, 1))
    pool.at(2000, pool.engines.add, "e", call("b", [("a", 16), ("b", 4)], 1))

    assert pool.run()[-1] == ("b", "finished", 2000 + 10 + 20 * 5)


@pytest.mark.parametrize(
    "wrong",
    [{"gbit_s": 0.0}, {"latency_us": -1.0}, {"overlapped": 1.5}, {"host_gb_s": 0.0}],
)
def test_a_link_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(SetupError, match="p: "):
        KvLinks({"p": CacheLink(**({"gbit_s": 1.0} | wrong))}, BYTES)


def test_g10_prompts_that_begin_alike_are_fetched_together_and_all_is_given_back():
    """Many pairs at once share beginnings, prefill instances, room and links."""
    pool = Pool(p=profile(kv_tokens=80), q=profile(), d=profile(kv_tokens=120), e=profile())
    for n in range(60):
        pieces = [("system", 4 * (n % 3) + 4), (f"tools{n % 2}", 6), (f"{n}", n % 7 + 1)]
        prefill, decode = "pq"[n % 2], "de"[n % 5 == 0]
        pool.pair(7 * n, call(f"c{n}", pieces, n % 4 + 1), prefill, decode)
    found = pool.run()

    assert sorted(name for name, what, _ in found if what == "finished") == sorted(
        f"c{n}" for n in range(60)
    )
    assert all(pool.free(name) for name in "pqde")
