"""G11: how many instances there should be: what is decided of a pool, and why."""

import pytest

from kairos.capacity.autoscaling import Autoscaler, ScalingRules
from kairos.core import DayShape, Look, SetupError
from tests.support.core.demand import DAY_S, OpenWork

EVERY_S = 15.0


def steady(calls, at_s, begun, seats=20.0, left_s=100.0):
    work = [OpenWork(calls, calls, calls * left_s)] if calls else []
    return Look(at_s=at_s, begun=begun, open_work=work, running=calls, seats=seats)


def play(scaler, calls, seconds, instances, start_s=0.0, begun=0):
    """Decisions of so long with so many calls in flight, which are carried out at once."""
    made = []
    for step in range(int(seconds / EVERY_S)):
        at_s = start_s + step * EVERY_S
        decision = scaler.decide(steady(calls, at_s, begun + int(at_s * calls / 100)), instances)
        instances += decision.change
        made.append((at_s, decision))
    return instances, made


def test_g11_as_many_as_the_calls_need_and_some_kept_free():
    scaler = Autoscaler(ScalingRules(utilisation=0.9))
    instances, _ = play(scaler, 64, 7200, 1)
    assert instances == 4  # 64 / (0.9 * 20) = 3.6


def test_the_reason_tells_the_calls_the_time_and_the_seats():
    _, made = play(Autoscaler(ScalingRules(start_s=90)), 64, 3600, 1)
    _, first = next(each for each in made if each[1].change > 0)
    assert "calls in flight" in first.why
    assert "in 90 s" in first.why
    assert "20 to an instance" in first.why


def test_g11_the_pool_follows_a_load_down_once_it_was_calm():
    scaler = Autoscaler(ScalingRules(calm_s=300))
    instances, _ = play(scaler, 100, 3600, 6)
    before = instances
    after, made = play(scaler, 20, 7200, instances, start_s=3600, begun=0)
    assert after < before
    at_s, down = next(each for each in made if each[1].change < 0)
    assert at_s >= 3600 + 300
    assert "no more were needed for 60 s, nor will be for 300 s" in down.why


def test_g11_a_moment_of_more_calls_puts_a_drain_off_for_a_minute():
    scaler = Autoscaler(ScalingRules(calm_s=300))
    drained = []
    for at_s in range(0, 400, 15):
        calls = 55 if at_s == 270 else 10
        if scaler.decide(steady(calls, float(at_s), int(at_s * 10 / 100)), 3).change < 0:
            drained.append(at_s)
    assert drained[0] == 345  # not at 300, when it had been watched for long enough


@pytest.mark.parametrize(("rises_at_s", "kept"), [(120, True), (180, False)])
def test_g11_an_instance_is_kept_for_what_comes_before_another_could_be_started(rises_at_s, kept):
    """A day whose shape is known; the rate of half the way counts: of 150 s here."""
    minutes = int(DAY_S / 60)
    rises = minutes // 2 + rises_at_s // 60
    day = DayShape((1.0,) * rises + (4.0,) * (minutes - rises))
    scaler = Autoscaler(ScalingRules(calm_s=300, start_s=120), day=day)
    for at_s in range(int(DAY_S / 2) - 7200, int(DAY_S / 2) + 15, 15):
        decision = scaler.decide(steady(16, float(at_s), int(at_s * 0.16)), 2)
    assert decision.change == (0 if kept else -1)


def test_g11_a_rate_that_doubles_at_once_is_met_while_one_instance_starts():
    scaler = Autoscaler(ScalingRules(start_s=120, most=20))
    instances, _ = play(scaler, 60, 7200, 1)
    begun, calls, started = 7200 * 60 // 100, 60, None
    for at_s in range(7200, 7200 + 600, 15):
        calls = min(120, calls + 9)  # of stays of 100 s as many again in two minutes
        begun += 18
        change = scaler.decide(steady(calls, float(at_s), begun), instances).change
        instances += change
        if started is None and change > 0:
            started = at_s
    assert started is not None
    assert started - 7200 <= 60
    assert instances >= 6  # 120 / 20


def test_fewer_than_the_least_are_made_up_at_once_even_after_a_drain():
    scaler = Autoscaler(ScalingRules(least=2, most=5))
    assert scaler.decide(steady(1, 0.0, 0), serving=0).change == 2
    assert scaler.decide(steady(1, 15.0, 0), serving=0, starting=1).change == 1


def test_more_than_the_most_are_drained():
    assert Autoscaler(ScalingRules(most=3)).decide(steady(500, 0.0, 0), serving=5).change == -2


def test_an_instance_that_starts_counts_as_there():
    scaler = Autoscaler(ScalingRules())
    play(scaler, 64, 3600, 1)
    decision = scaler.decide(steady(64, 3600.0, 2304), serving=3, starting=1)
    assert decision.change == 0
    assert decision.instances == 4


def test_nothing_is_drained_before_it_was_watched_for_long_enough():
    scaler = Autoscaler(ScalingRules(calm_s=600))
    _, made = play(scaler, 0, 585, 4)
    assert all(decision.change == 0 for _, decision in made)
    assert "not observed for calm_s" in made[-1][1].why


def test_seats_that_are_stated_count():
    scaler = Autoscaler(ScalingRules(seats=8, utilisation=1, most=50))
    instances, _ = play(scaler, 64, 7200, 1)
    assert instances == 8


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        (ScalingRules(least=0), "least"),
        (ScalingRules(least=4, most=3), "most"),
        (ScalingRules(start_s=-1), "start_s"),
        (ScalingRules(calm_s=float("nan")), "calm_s"),
        (ScalingRules(utilisation=0), "utilisation"),
        (ScalingRules(utilisation=float("nan")), "utilisation"),
        (ScalingRules(slack=1), "slack"),
        (ScalingRules(seats=0), "seats"),
    ],
)
def test_rules_that_cannot_be_kept_are_refused_by_name(rules, named):
    with pytest.raises(SetupError, match=named):
        Autoscaler(rules)
