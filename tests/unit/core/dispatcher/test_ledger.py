"""What is in flight where, fact by fact. Laws: `property/core/test_ledger_laws.py`."""

import pytest

from kairos.core import (
    QUANTILES,
    SECOND,
    Distribution,
    Finished,
    InstanceStatus,
    Ledger,
    exponential_distribution,
)
from kairos.core.dispatcher import ledger as module
from tests.support.simulate import build

LATENCY = Distribution(5e6, (1e6,) * 40 + tuple(2e6 + n * 1e6 for n in range(QUANTILES - 40)))


def ledger(*instances, **known):
    made = Ledger(build.Lengths(**known))
    for each in instances or [build.instance("a", kv=1000)]:
        made.add_instance(each)
    return made


def booked(made, name="r", where="a", at=0, **fields):
    made.book(build.request(name, **fields), where, at)


def test_a_call_holds_its_prompt_and_then_its_answer_too():
    made = ledger(build.instance("a", kv=1000, token_us=10_000.0))
    booked(made, prompt=100)
    assert made.held_tokens("a", 0) == 100
    made.record_first_token("r", SECOND)
    assert made.held_tokens("a", SECOND) == 101
    assert made.held_tokens("a", 2 * SECOND) == pytest.approx(201)
    made.record_progress({"r": 50}, 2 * SECOND)
    assert made.held_tokens("a", 2 * SECOND) == 150


def test_until_its_prompt_is_computed_an_answer_does_not_grow():
    made = ledger(build.instance("a", token_us=10_000.0))
    booked(made, prompt=500)
    assert made.served.speeds["a"].prefill_us(500) == 100_000
    grows_us = module._PATIENCE * 100_000
    assert made.held_tokens("a", grows_us) == 500
    assert made.held_tokens("a", grows_us + 30_000) == pytest.approx(503)
    assert made.flight("a").delays_us(30_000).tolist() == [70_000]


def test_of_a_prompt_that_is_cached_only_the_rest_is_computed_first():
    made = ledger(build.instance("a", kv=10_000, token_us=10_000.0))
    alike = {"prompt": 1024, "prefix": tuple(range(15)), "prefix_units": 1024}
    booked(made, "one", **alike)
    made.release_booking("one", 0, Finished("one", 1024, 1))
    booked(made, "two", at=SECOND, **alike)
    assert made.booking("two").cached_tokens == 960
    begins = SECOND + int(module._PATIENCE * made.served.speeds["a"].prefill_us(64))
    assert made.held_tokens("a", begins) == 1024
    assert made.held_tokens("a", begins + 10_000) == pytest.approx(1025)


def test_a_count_that_is_behind_what_was_told_is_late_news():
    made = ledger(build.instance("a", token_us=10_000.0))
    booked(made, prompt=100)
    made.record_progress({"r": 50}, SECOND)
    made.record_progress({"r": 20}, SECOND + 1)
    made.record_first_token("r", SECOND + 2)
    assert made.booking("r").generated == 50
    made.record_first_token("r", 9 * SECOND)
    assert made.booking("r").first_token_at == SECOND + 2


def test_how_quick_an_instance_is_shows_while_its_answers_grow():
    made = ledger(build.instance("a", token_us=10_000.0), build.instance("b", token_us=10_000.0))
    names = [f"r{n}" for n in range(5)]
    for name in names:
        booked(made, name)
        made.record_first_token(name, 0)
    for second in range(1, 100):  # 40 ms a token; one of them is held up
        counts = dict.fromkeys(names, 1 + 25 * second)
        made.record_progress(counts | {"r3": 2 + second // 50}, second * SECOND)
    assert made.served.speeds["a"].token_us(5) == pytest.approx(40_000, rel=0.1)
    known = made.served.speeds["a"].token_us(5)
    made.record_progress({"r0": 1 + 25 * 99}, 120 * SECOND)  # nothing new
    booked(made, "elsewhere", where="unheard of")
    made.record_first_token("elsewhere", 120 * SECOND)
    made.record_progress({"elsewhere": 4000}, 121 * SECOND)
    assert made.served.speeds["b"].token_us(5) == known


def test_prompts_that_share_their_beginning_hold_it_once():
    made = ledger(build.instance("a", kv=10_000), build.instance("b", prefix_caching=False))
    alike = {"prompt": 300, "prefix": (1, 2, 3, 4), "prefix_units": 300}
    for n in range(3):
        booked(made, f"a{n}", **alike)
        booked(made, f"b{n}", where="b", **alike)
    assert made.held_tokens("a", 0) == 900 - 2 * 256
    assert made.held_tokens("b", 0) == 900
    made.release_booking("a0", 0)
    assert made.held_tokens("a", 0) == 600 - 256


def test_what_is_shared_is_never_more_than_all_prompts_but_the_longest():
    """Lengths are estimates: the same beginning was taken for 4,000 tokens, and then for 10."""
    made = ledger(build.instance("a", kv=10_000))
    alike = {"prefix": (1, 2, 3, 4), "prefix_units": 256}
    booked(made, "long", prompt=4000, **alike)
    for n in range(5):
        booked(made, f"short{n}", prompt=10, **alike)
    assert made.held_tokens("a", 0) == 4000
    made.release_booking("long", 0)
    assert made.held_tokens("a", 0) == 10


def test_what_calls_share_is_not_known_any_more_when_their_instance_leaves():
    made = ledger()
    alike = {"prompt": 300, "prefix": (1, 2, 3, 4), "prefix_units": 300}
    booked(made, "one", **alike)
    booked(made, "two", **alike)
    assert made.held_tokens("a", 0) == 600 - 256
    made.remove_instance("a")
    assert made.held_tokens("a", 0) == 600


def test_calls_of_others_on_an_instance_that_has_not_joined_yet_are_counted_when_it_does():
    made = ledger()
    booked(made, where="later", prompt=70)
    assert (made.running("later"), made.held_tokens("later", SECOND)) == (1, pytest.approx(70))
    later = build.instance("later", seqs=2)
    made.add_instance(later)
    assert made.takes_more(later, 0)
    booked(made, "next", where="later", prompt=10)
    assert not made.takes_more(later, 0)


def test_what_runs_on_an_instance_that_left_stays_booked_until_it_ends():
    made = ledger()
    booked(made, prompt=70)
    made.remove_instance("a")
    assert made.running("a") == 1
    made.add_instance(build.instance("a", kv=1000))
    assert made.held_tokens("a", 0) == 70
    made.release_booking("r", 0, Finished("r", 70, 5, 0))
    assert made.held_tokens("a", 0) == 0
    assert not made.prefixes._caches["a"].begun


def test_a_step_takes_no_more_prompts_than_its_budget_until_they_are_computed():
    made = ledger(build.instance("a", seqs=9, max_num_batched_tokens=300))
    instance = made.instances["a"]
    booked(made, "one", prompt=200)
    assert made.takes_more(instance, 0)
    booked(made, "two", prompt=100)
    assert not made.takes_more(instance, 0)
    assert 0 < made.takes_more_in_us(instance, 0) < 10 * SECOND
    made.record_first_token("one", 1)
    assert made.takes_more(instance, 1)
    assert made.takes_more_in_us(instance, 1) == 0
    booked(made, "three", prompt=200, at=1)
    assert not made.takes_more(instance, 1)
    assert made.takes_more(instance, 60 * SECOND)  # whoever tells no first token is done by then
    made.release_booking("three", 2)
    made.release_booking("two", 2)
    assert made.takes_more(instance, 2)


def test_an_instance_whose_sequences_all_run_is_expected_to_take_more_when_one_ends():
    made = ledger(build.instance("a", seqs=2))
    instance = made.instances["a"]
    booked(made, "one")
    booked(made, "two")
    waits_us = made.takes_more_in_us(instance, 0)
    assert 0 < waits_us < 60 * SECOND
    made.release_booking("one", 0)
    assert made.takes_more_in_us(instance, 0) == 0


def test_how_long_a_call_takes_is_the_mode_of_what_is_known_and_else_a_guess():
    made = ledger(latency_us={"x": LATENCY})
    assert made.latencies.typical_us(build.request("r", agent="x")) == 1e6
    assert made.latencies.typical_us(build.request("r", completion=10)) == 200_000


def test_modes_are_found_anew_when_more_is_known_and_never_too_many_are_kept(monkeypatch):
    monkeypatch.setattr("kairos.core.dispatcher.demand._MAX_MODES", 10)
    known = {f"x{n}": exponential_distribution(1000.0 * (n + 1)) for n in range(40)}
    made = ledger(latency_us=known)
    for _ in range(2):
        for name in known:
            made.latencies.typical_us(build.request("r", agent=name))
            assert len(made.latencies._modes) <= 10
    before = made.latencies.typical_us(build.request("r", agent="x1"))
    made.lengths.latencies_us["x1"] = LATENCY
    assert made.latencies.typical_us(build.request("r", agent="x1")) == 1e6 != before


def test_calls_teach_how_quick_their_instance_is():
    made = ledger(build.instance("a", seqs=99, kv=10**6))
    for n in range(300):
        at = n * 10 * SECOND
        booked(made, f"r{n}", prompt=1000, at=at)
        made.record_first_token(f"r{n}", at + 300_000)
        made.release_booking(f"r{n}", at + 300_000 + 99 * 5_000, Finished(f"r{n}", 1000, 100, 0))
    assert made.served.speeds["a"].token_us(1) == pytest.approx(5_000, rel=0.1)
    assert made.served.speeds["a"].prefill_us(1000) == pytest.approx(300_000, rel=0.1)


@pytest.mark.parametrize("finished", [None, Finished("r"), Finished("r", 10, 1), Finished("r", 0)])
def test_calls_that_say_nothing_of_it_teach_nothing_wrong(finished):
    made = ledger()
    booked(made)
    made.release_booking("r", 999 * SECOND, finished)
    booked(made)
    made.record_first_token("r", 999 * SECOND)
    made.release_booking("r", 999 * SECOND, None)
    assert made.token_us("a") == 25_000
    assert made.served.speeds["a"].prefill_us(1000) == pytest.approx(200_000)


def test_a_call_that_came_from_the_cache_teaches_what_the_rest_took():
    made = ledger(build.instance("a", kv=10**6))
    for n in range(300):
        cached, took_us = (0, 1_000_000) if n % 2 else (4900, 20_000)
        at = n * 2 * SECOND
        booked(made, f"r{n}", prompt=5000, at=at)
        made.record_first_token(f"r{n}", at + took_us)
        made.release_booking(f"r{n}", at + took_us, Finished(f"r{n}", 5000, 1, cached))
    assert made.served.speeds["a"].prefill_us(100) < 60_000
    assert made.served.speeds["a"].prefill_us(5000) == pytest.approx(1_000_000, rel=0.1)


def test_instances_of_a_kind_teach_each_other_and_kinds_that_are_gone_are_forgotten():
    made = ledger(build.instance("a", kv=5), build.instance("b", kv=5), build.instance("c"))
    assert (
        made.served.speeds["a"].pace
        is made.served.speeds["b"].pace
        is not made.served.speeds["c"].pace
    )
    for n in range(50):
        made.add_instance(build.instance(f"i{n}", kv=1000 + n))
        made.remove_instance(f"i{n}")
    assert len(made.served._paces) <= 3


def test_an_engine_that_has_not_begun_a_call_is_not_taken_to_have_its_memory_free():
    made = ledger(build.instance("a", kv=1000))
    instance = made.instances["a"]
    booked(made, "runs", prompt=200)
    made.record_first_token("runs", 0)
    booked(made, "waits", prompt=600)
    made.record_status(InstanceStatus("a", kv_used=0.2), 0)
    assert made.health.unseen_tokens(instance, 0) == pytest.approx(0, abs=1)
    made.record_first_token("waits", 0)
    made.record_status(InstanceStatus("a", kv_used=0.2), 0)  # it holds less than was thought
    assert made.health.unseen_tokens(instance, 0) < -100


def test_who_left_is_forgotten_with_what_it_said_of_itself():
    made = ledger()
    for n in range(20):
        name = f"pod-{n}"
        made.add_instance(build.instance(name, kv=1000))
        booked(made, name, where=name)
        made.record_status(InstanceStatus(name, kv_used=1.0, preemptions=0), n)
        made.remove_instance(name)
        made.record_status(InstanceStatus(name, kv_used=1.0, preemptions=0), n)
        made.release_booking(name, n)
    for kept in (
        made._flights,
        made.prompts._prompts,
        made._speeds,
        made._versions,
        made._last_booking,
    ):
        assert set(kept) <= {"a"}
    assert made.health._told == {}
    assert set(made.prefixes._caches) == {"a"}


def test_versions_rise_with_each_fact_even_across_an_absence():
    made = ledger()
    seen = [made.version("a")]
    booked(made)
    seen.append(made.version("a"))
    made.record_first_token("r", 1)
    seen.append(made.version("a"))
    made.release_booking("r", 2)
    seen.append(made.version("a"))
    made.remove_instance("a")
    made.add_instance(build.instance("a", kv=1000))
    seen.append(made.version("a"))
    assert seen == sorted(set(seen))
    assert [*made.changed_since(seen[-2])] == ["a"]
    assert [*made.changed_since(seen[-1])] == []


def test_which_instances_have_changed_is_told_newest_first():
    made = ledger(*(build.instance(name) for name in "abc"))
    before = made.changes
    for name in "bca":
        booked(made, name, where=name)
    booked(made, "more", where="b")
    assert [*made.changed_since(before)] == ["b", "a", "c"]
    assert [*made.changed_since(made.version("a"))] == ["b"]


def test_models_and_instances_that_serve_them():
    made = ledger(
        build.instance("a", models=("m", "n")),
        build.instance("b", models=("n",)),
        build.instance("c"),
    )
    assert made.served.models() == ["m", "n"]
    assert [i.id for i in made.served.serving("n")] == ["a", "b"]
    assert [i.id for i in made.served.serving(None)] == ["a", "b", "c"]
    assert made.served.serving("x") == []


def test_each_call_leaves_half_of_its_last_block_free():
    made = ledger(build.instance("a", block_size=16))
    made.book(build.request("r", prompt=100), "a", 0)
    made.book(build.request("s", prompt=10), "a", 0)
    assert made.held_tokens("a", 0) == 110 + 2 * 7.5
    made.release_booking("s", 0)
    assert made.held_tokens("a", 0) == 107.5
    assert made.unfilled_tokens("gone") == 0
