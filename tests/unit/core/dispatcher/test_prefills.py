"""G12: calls are routed to pairs: an instance for the answer, and one for the prompt."""

import pytest
from msgspec.structs import replace

from kairos.core import (
    PLACEMENTS,
    Arrived,
    Bounced,
    Cancelled,
    Dispatch,
    Failed,
    Finished,
    FirstToken,
    InstanceJoined,
    InstanceLeft,
    PrefillFailed,
    Record,
)
from kairos.core.faults.circuits import FIRST_US
from tests.support.simulate import build

KV = 100_000


def instance(name, phase="both", usd=None, **more):
    return build.instance(name, **({"kv": KV} | more), phase=phase, usd_per_hour=usd)


def pool(*instances, placement="kairos"):
    return build.balancer(*instances, placement=placement)


def arrive(balancer, name, at=0, prompt=1000, **fields):
    made = build.request(name, at=at, prompt=prompt, **fields)
    return balancer.handle(Arrived(made), at)


def ways(commands):
    return [(each.prefill_id, each.instance_id) for each in commands if type(each) is Dispatch]


PAIR = instance("p", "prefill"), instance("d", "decode")


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_g12_a_pair_gets_the_prompt_first_and_the_answer_then_with_every_placement(placement):
    assert ways(arrive(pool(*PAIR, placement=placement), "r")) == [("p", "d")]


def test_g12_an_instance_of_both_phases_keeps_its_calls():
    assert ways(arrive(pool(instance("a")), "r")) == [(None, "a")]
    assert ways(arrive(pool(instance("p", "prefill"), instance("a")), "r")) == [(None, "a")]


def test_g12_a_decode_instance_computes_prompts_where_nobody_else_does():
    balancer = pool(*PAIR)
    balancer.handle(InstanceLeft("p"), 0)

    assert ways(arrive(balancer, "r")) == [(None, "d")]


def test_g12_a_prefill_instance_has_whole_calls_where_nobody_else_could():
    balancer = pool(*PAIR)
    balancer.handle(InstanceLeft("d"), 0)

    assert ways(arrive(balancer, "r")) == [(None, "p")]
    balancer.handle(InstanceJoined(PAIR[1]), 1)
    assert ways(arrive(balancer, "s", at=2)) == [("p", "d")]


def test_g12_prompts_go_where_fewest_tokens_are_before_them():
    balancer = pool(instance("p", "prefill"), instance("q", "prefill"), instance("d", "decode"))

    assert ways(arrive(balancer, "long", prompt=5000)) == [("p", "d")]
    assert ways(arrive(balancer, "b", prompt=3000)) == [("q", "d")]
    assert ways(arrive(balancer, "c", prompt=100)) == [("q", "d")]
    balancer.handle(FirstToken("long"), 1)
    assert ways(arrive(balancer, "e", at=1)) == [("p", "d")]


def test_g12_a_prompt_goes_back_to_the_prefill_instance_that_has_its_beginning():
    balancer = pool(instance("p", "prefill"), instance("q", "prefill"), instance("d", "decode"))
    alike = {"prompt": 1024, "prefix": tuple(range(15)), "prefix_units": 1024}
    arrive(balancer, "other", prompt=10)
    assert ways(arrive(balancer, "one", **alike)) == [("q", "d")]
    for name in ("other", "one"):
        balancer.handle(Finished(name, 1024, 1), 1)

    assert ways(arrive(balancer, "two", at=2, **alike)) == [("q", "d")]


def test_g12_another_models_prefill_instance_is_left_alone():
    balancer = pool(instance("p", "prefill", models=("n",)), instance("d", "decode"))

    assert ways(arrive(balancer, "r")) == [(None, "d")]


def test_g12_calls_wait_in_the_queue_while_prompts_take_all_of_the_prefill_instances():
    few = instance("p", "prefill"), instance("d", "decode", token_us=1e5)
    balancer = pool(replace(few[0], max_num_batched_tokens=2000), few[1])
    arrive(balancer, "a", prompt=1500)
    arrive(balancer, "b", prompt=1500)

    assert arrive(balancer, "c", prompt=1500) == []
    assert ways(balancer.handle(FirstToken("a"), 10)) == [("p", "d")]


def test_g12_prompts_that_others_compute_do_not_make_a_decode_instance_busy():
    decode = replace(PAIR[1], max_num_batched_tokens=1000)
    balancer = pool(PAIR[0], decode)

    assert ways(arrive(balancer, "a", prompt=1500)) == [("p", "d")]
    assert ways(arrive(balancer, "b", prompt=1500)) == [("p", "d")]


def test_g12_of_instances_that_are_alike_the_cheaper_one_is_chosen():
    dear, cheap, untold = instance("a", usd=4.0), instance("b", usd=2.0), instance("c")

    assert ways(arrive(pool(dear, untold, cheap), "r")) == [(None, "b")]


@pytest.mark.parametrize(
    "end",
    [
        Finished("r", 1000, 5, 200),
        Failed("r", "broken"),
        Cancelled("r"),
        Bounced("r", "broken"),
    ],
)
def test_g12_nothing_stays_booked_of_a_pair_however_a_call_ends(end):
    balancer = pool(*PAIR)
    arrive(balancer, "r")
    balancer.handle(InstanceLeft("d"), 1)
    balancer.handle(end, 2)

    assert not balancer.ledger.prefills
    assert balancer.ledger.prompts.tokens("p") in (0, 1000)  # bounced, it has gone to p, whole
    balancer.handle(Cancelled("r"), 3)
    assert balancer.ledger.prompts.tokens("p") == 0


def test_a_prefill_instance_that_leaves_takes_nothing_of_the_call_with_it():
    balancer = pool(*PAIR)
    arrive(balancer, "r")
    balancer.handle(InstanceLeft("p"), 1)
    balancer.handle(FirstToken("r"), 2)
    balancer.handle(Finished("r", 1000, 5), 3)

    assert not balancer.ledger.prefills
    assert len(balancer.ledger) == 0


def test_of_prefill_instances_that_left_nothing_is_kept():
    balancer = pool(*PAIR)
    for number in range(3):
        balancer.handle(InstanceJoined(instance(f"p{number}", "prefill")), number)
        arrive(balancer, f"r{number}", at=number, prompt=10)
    for number in range(3):
        balancer.handle(InstanceLeft(f"p{number}"), 4)
        balancer.handle(Finished(f"r{number}", 10, 1), 4)

    assert set(balancer.ledger.changed_since(0)) == {"p", "d"}


def test_a_call_that_may_kill_an_instance_computes_its_prompt_where_it_runs_alone():
    balancer = pool(PAIR[0], *(instance(name, "decode") for name in "abc"))
    [(_, there)] = ways(arrive(balancer, "killer"))
    balancer.handle(Bounced("killer", "broke", 7, dropped=True), 1)
    commands = balancer.handle(InstanceLeft(there), 2)

    [alone] = [each for each in commands if type(each) is Dispatch]
    assert (alone.reason, alone.prefill_id) == ("alone", None)


def test_a_replayed_log_books_prompts_where_they_were_computed():
    first, second = pool(*PAIR), pool(*PAIR)
    request = Arrived(build.request("r", prompt=1000))
    second.replay(Record(0, request, tuple(first.handle(request, 0))))

    assert second.ledger.prompts.tokens("p") == first.ledger.prompts.tokens("p") == 1000
    assert second.ledger.prompts.tokens("d") == 0


def serve(balancer, name, at, *, fails, body=None):
    """A call to its end, whose prompt the prefill instance computes, or fails; the way it went."""
    [way] = ways(arrive(balancer, name, at=at))
    if fails and way[0] is not None:
        balancer.handle(PrefillFailed(name, body), at)
    balancer.handle(Finished(name, 1000, 5), at)
    return way


def test_a_prefill_instance_that_fails_is_left_aside_and_tried_again_later():
    balancer = pool(*PAIR)
    assert serve(balancer, "a", 0, fails=True) == ("p", "d")
    assert serve(balancer, "b", 1, fails=True) == (None, "d")
    assert serve(balancer, "c", FIRST_US, fails=True) == ("p", "d")
    assert serve(balancer, "d", 2 * FIRST_US, fails=True) == (None, "d")  # twice as long
    assert serve(balancer, "e", 3 * FIRST_US, fails=False) == ("p", "d")
    assert serve(balancer, "f", 3 * FIRST_US + 1, fails=False) == ("p", "d")


def test_while_it_is_tried_it_has_one_prompt_at_a_time():
    balancer = pool(*PAIR)
    serve(balancer, "a", 0, fails=True)
    assert ways(arrive(balancer, "b", at=FIRST_US)) == [("p", "d")]
    assert ways(arrive(balancer, "c", at=FIRST_US)) == [(None, "d")]
    balancer.handle(FirstToken("b"), FIRST_US + 1)
    assert ways(arrive(balancer, "e", at=FIRST_US + 1)) == [("p", "d")]


def test_one_that_served_its_latest_prompts_is_left_aside_after_several_failures():
    balancer = pool(*PAIR)
    for number in range(8):
        serve(balancer, f"w{number}", number, fails=False)
    went = [serve(balancer, f"f{number}", 10 + number, fails=True)[0] for number in range(5)]
    assert went == ["p", "p", "p", None, None]


def test_while_one_prefill_instance_is_left_aside_another_has_its_prompts():
    balancer = pool(instance("p", "prefill"), instance("q", "prefill"), instance("d", "decode"))
    assert serve(balancer, "a", 0, fails=True) == ("p", "d")
    assert [serve(balancer, f"r{n}", 1 + n, fails=False)[0] for n in range(3)] == ["q"] * 3


def test_a_call_at_which_all_fail_is_held_against_no_prefill_instance():
    balancer = pool(*PAIR, instance("e", "decode"))
    for number in range(8):
        serve(balancer, f"w{number}", number, fails=False)
    arrive(balancer, "poison", at=10)
    balancer.handle(PrefillFailed("poison", 7), 11)
    balancer.handle(Bounced("poison", "broke", 7), 12)
    balancer.handle(PrefillFailed("poison", 7), 13)
    assert ways(arrive(balancer, "next", at=14))[0][0] == "p"


def test_of_a_prefill_instance_that_has_left_nothing_is_held_against_the_next_of_its_name():
    balancer = pool(*PAIR)
    arrive(balancer, "a")
    balancer.handle(InstanceLeft("p"), 1)
    balancer.handle(PrefillFailed("a"), 2)
    balancer.handle(InstanceJoined(PAIR[0]), 3)
    assert ways(arrive(balancer, "b", at=4)) == [("p", "d")]


def test_a_prefill_failure_of_a_call_that_is_not_here_changes_nothing():
    balancer = pool(*PAIR)
    assert balancer.handle(PrefillFailed("nobody", 7), 0) == []
    arrive(balancer, "a", at=1)
    balancer.handle(PrefillFailed("a"), 2)
    balancer.handle(PrefillFailed("a"), 3)  # told again
    assert not balancer.ledger.prefills
