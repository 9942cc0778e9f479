"""Touches between invocations against a naive cache: never much more is computed than without."""

from random import Random

import pytest

from kairos.workflows.execute.prefix_touches import ServedPrefix, touch_price

S = 1_000_000


class Engine:
    """An engine that drops a beginning that was not used for some time."""

    def __init__(self, tokens, stays):
        self.tokens, self.stays = tokens, stays
        self.used_at, self.computed = -(10**12), 0.0

    def use(self, at):
        """Return how many of its tokens were there."""
        found = self.tokens if at - self.used_at < self.stays(at) else 0
        self.computed += self.tokens - found
        self.used_at = at
        return found


def computed(tokens, stays, calls, *, keeps):
    """Return what engines compute, touches included, and how many calls have found it."""
    engine, kept = Engine(tokens, stays), ServedPrefix(tokens)
    due, found, touches = None, 0, 0
    for at in calls:
        while keeps and due is not None and due < at:
            touches += 1
            engine.computed += touch_price(tokens)
            due = kept.on_touch(due, engine.use(due))
        cached = engine.use(at)
        found += cached > 0
        due = kept.on_call(at, at + S // 10, cached)
    return engine.computed, found, touches


def drawn_calls(draw, count):
    """Times of calls: regular, at random, some at once, or with long pauses."""
    kind, gap = draw.randrange(4), 10 ** draw.uniform(0.3, 3)
    at, found = 0.0, []
    for number in range(count):
        each = draw.expovariate(1 / gap) if kind else gap * draw.uniform(0.9, 1.1)
        if kind == 2:
            each = each * 5 if number % 5 == 0 else 0.5
        if kind == 3 and number % 30 == 0:
            each += 36_000
        at += 0.2 + each
        found.append(round(at * S))
    return found


def drawn_stays(draw):
    """How long the engine keeps what is not used: always alike, or changing all the time."""
    usual, spread = 10 ** draw.uniform(0.5, 3) * S, draw.choice((0.0, 0.0, 0.3))
    noise = Random(draw.random())
    return lambda _: usual * (1 + spread * noise.uniform(-1, 1))


def drawn(seed):
    draw = Random(seed)
    tokens, count = draw.choice((64, 200, 800, 3_000, 20_000)), draw.choice((20, 100, 300))
    calls, state = drawn_calls(draw, count), draw.getstate()
    runs = []
    for keeps in (True, False):
        draw.setstate(state)
        runs.append(computed(tokens, drawn_stays(draw), calls, keeps=keeps))
    return tokens, count, runs


@pytest.mark.parametrize("seed", range(300))
def test_touches_cost_little_more_than_they_save(seed):
    tokens, count, ((kept, found, touches), (usual, found_usual, _)) = drawn(seed)
    assert kept <= usual + 4 * tokens + 0.03 * count * tokens, (kept / tokens, usual / tokens)
    assert found >= found_usual - 2 or touches


def test_of_many_drawn_flows_much_less_is_computed():
    sums, gained = [0.0, 0.0], 0
    for seed in range(300):
        tokens, count, runs = drawn(seed)
        for at, (computed_tokens, _, _) in enumerate(runs):
            sums[at] += computed_tokens / tokens / count
        gained += runs[0][1] > runs[1][1] + 0.1 * count
    assert sums[0] < 0.95 * sums[1]
    assert gained > 30


@pytest.mark.parametrize(("gap_s", "most"), [(5, 0), (59, 0), (6_000, 12), (100_000, 12)])
def test_flows_that_are_busy_or_slow_have_hardly_any_touches(gap_s, most):
    calls = [(1 + n) * gap_s * S for n in range(200)]
    assert computed(800, lambda _: 60 * S, calls, keeps=True)[2] <= most


def test_a_flow_in_between_finds_nearly_all():
    calls = [(1 + n) * 150 * S for n in range(200)]
    usual, found_usual, _ = computed(800, lambda _: 60 * S, calls, keeps=False)
    kept, found, _ = computed(800, lambda _: 60 * S, calls, keeps=True)
    assert found_usual == 0
    assert kept < 0.8 * usual, (kept / usual, found)
    assert found > 150


def test_without_reports_of_what_was_found_hardly_anything_is_touched():
    kept, touches, due = ServedPrefix(800), 0, None
    for number in range(1, 200):
        at = number * 100 * S
        while due is not None and due < at:
            touches += 1
            due = kept.on_touch(due, 0)
        due = kept.on_call(at, at + S, 0)
    assert touches <= 8
