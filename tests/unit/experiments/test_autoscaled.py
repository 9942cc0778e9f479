"""Instances that are started and drained while a simulation runs."""

from experiments.autoscaled import AutoscaledPool
from kairos.core import PLACEMENTS, POLICIES
from kairos.simulate import World
from tests.support.simulate.worlds import call, dispatched, profile, submission

SECOND_MS = 1000


def run(submissions, decide, *, instances=1, start_s=5.0, seqs=1):
    pool = AutoscaledPool(
        profile(seqs=seqs, kv=100_000, max_model_len=30_000),
        decide,
        instances=instances,
        start_s=start_s,
        every_s=1,
    )
    log = []
    world = World(
        submissions,
        pool.first,
        POLICIES["fcfs"],
        PLACEMENTS["round-robin"],
        observers=(log.append,),
        on_second=pool.each_second,
    )
    world.run()
    assert world.users.left == 0
    return pool, dispatched(log)


def at(*seconds_and_change):
    """Decides so at these seconds, else nothing."""
    changes = dict(seconds_and_change)
    return lambda asked: changes.get(round(asked.look.at_s), 0)


def long_ones(count, tokens=20_000):
    return [submission(f"w{n}", call(tokens)) for n in range(count)]


def test_an_instance_that_is_started_serves_after_its_time_to_start():
    _, went = run(long_ones(2), at((3, 1)), start_s=5)
    assert went[0][0] == 0
    assert went[1] == (8 * SECOND_MS, went[1][1], "instance-1")


def test_one_that_drains_takes_no_more_and_ends_what_it_has():
    pool, went = run(long_ones(4), at((3, -1)), instances=2)
    assert [each[2] for each in went].count("instance-1") == 1
    draining = [size.at_s for size in pool.sizes if size.draining]
    assert min(draining) == 4
    assert max(draining) >= 19  # its call takes 20 s


def test_what_is_paid_for_is_from_the_start_to_the_end_of_the_last_call():
    pool, _ = run(long_ones(1), at())
    alone_s = pool.instance_s
    assert 19 <= alone_s <= 21
    pool, _ = run(long_ones(1), at((3, 1), (10, -1)), start_s=30)
    assert pool.instance_s == alone_s + 7  # started, and given up before it served
