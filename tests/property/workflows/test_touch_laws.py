"""Touches keep static beginnings in a cache from which others drop them, as long as that pays."""

from hypothesis import given
from hypothesis import strategies as st

from kairos.workflows import FlowLimits
from kairos.workflows.compile.passes.static_prefixes import StaticPrefix
from kairos.workflows.execute.facts import CallAnswered
from kairos.workflows.execute.prefix_touches import PrefixTouches
from tests.support.examples import examples

PRICE = 32  # of a touch, with a fiftieth of the prompt


class Cache:
    """An engine that drops a beginning after some looks without use."""

    def __init__(self, tokens, stays):
        self.tokens, self.stays = tokens, stays
        self.used_at, self.now = 0, 0

    def use(self):
        """Return how many of its tokens were there."""
        found = self.now - self.used_at < self.stays
        self.used_at = self.now
        return self.tokens if found else 0


def paused(touches, cache, looks):
    """Return the price and number of touches in a pause, and what the call after it computes."""
    spent, made = 0.0, 0
    for _ in range(looks):
        cache.now += 1
        for touch in touches.check_pause():
            made += 1
            found = cache.use()
            spent += PRICE + 0.02 * cache.tokens + cache.tokens - found
            touches.on_touch_answer(touch.number, found)
    found = cache.use()
    touches.count_call("o", CallAnswered(0, "", cache.tokens, 1, found))
    return spent, made, cache.tokens - found


def begun(tokens):
    prefix = StaticPrefix(("o",), None, (("system", "x"),), tokens)
    touches = PrefixTouches((prefix,), FlowLimits(capacity=1, kv_tokens=10**9))
    touches.count_call("o", CallAnswered(0, "", tokens, 1))
    return touches


TOKENS = st.integers(64, 20_000)
PAUSES = st.lists(st.integers(0, 4_000), min_size=1, max_size=12)


@examples(300)
@given(TOKENS, st.integers(1, 3_000), PAUSES)
def test_no_pause_costs_more_than_twice_what_its_end_would_have(tokens, stays, pauses):
    touches, cache = begun(tokens), Cache(tokens, stays)
    for looks in pauses:
        spent, _, computed = paused(touches, cache, looks)
        assert spent <= 2 * tokens
        without = tokens if looks >= stays else 0
        assert spent + computed <= max(without, tokens) + 2 * tokens


@examples(300)
@given(TOKENS, st.integers(2, 300), st.lists(st.integers(1, 600), min_size=3, max_size=9))
def test_beginnings_are_found_after_each_pause_in_which_it_pays_to_keep_them(tokens, stays, pauses):
    """Once the touches know how long they stay, and while touches that often cost less than one."""
    touches, cache = begun(tokens), Cache(tokens, stays)
    paused(touches, cache, 5_000)  # finds out, if it is less than the touches have time for
    longest = max(1, 2 ** ((stays - 1).bit_length() - 1))
    for looks in pauses:
        spent, made, computed = paused(touches, cache, looks)
        price = PRICE + 0.02 * tokens
        pays = int(tokens // price)
        if looks <= sum(min(2**n, longest) for n in range(1, pays + 1)):
            assert computed == 0
            assert spent <= made * price + 0.01  # none was computed by a touch, either
        assert made <= pays
