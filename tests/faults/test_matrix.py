"""Tests of the cells of the table in docs/faults.md."""

import asyncio
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest

from kairos.core import Arrived, Dispatch, FirstToken
from tests.e2e.served import serving
from tests.faults.matrix import (
    AMID,
    ANSWERED,
    BEFORE,
    CUT,
    ELSEWHERE,
    ERROR,
    IDLE,
    MOMENTS,
    NONE,
    PAGE,
    QUEUED,
    ROWS,
    THERE,
    TOLD,
)
from tests.faults.poison import POISON
from tests.faults.villain import Mortal
from tests.support.simulate import standin as standins
from tests.support.simulate.standin import Timing

STEP_S = 0.03
SHORT, MIDDLE, LONG = 10, 30, 60  # tokens
DOWN_S = 0.5
PAGE_FILE = Path(__file__).parents[2] / "docs" / "faults.md"
CELLS = [(row, moment) for row in ROWS for moment in MOMENTS if row.poison is None]
VILLAINS = {
    Mortal.break_at_poison: {(503, "upstream_unreachable")},
    Mortal.die_at_poison: {(502, "call_breaks_engines"), (503, "upstream_unreachable")},
}
POISON_CELLS = [(row, moment) for row in ROWS for moment in MOMENTS if row.poison is not None]


class Two:
    """A Kairos before two instances; `hurt` is the one that has the first call."""

    def __init__(self, served, engines, proxies):
        self.served, self.engines, self.proxies = served, engines, proxies
        by_name = {each.url.removeprefix("http://"): each for each in proxies}
        self.name = next(iter(served.balancer.ledger.instances))
        self.hurt = by_name[self.name]

    def ask(self, name, *, tokens=SHORT, stream=True, says="Hello", **headers):
        body = {"max_tokens": tokens, "min_tokens": tokens, "stream": stream}
        body["messages"] = [{"role": "user", "content": says}]
        said = {"x-request-id": name} | headers
        return asyncio.create_task(self.served.chat(headers=said, **body))

    def poison(self):
        """A call of another client."""
        who = {"x-kairos-app": "another", "x-kairos-agent": "villain"}
        return self.ask("villain", says=POISON, **who)

    @contextmanager
    def paused(self):
        """Keep the engine busy until the block ends, however slow the machine is."""
        for each in self.engines:
            each.batch.pause()
        try:
            yield
        finally:
            for each in self.engines:
                each.batch.resume()

    def places(self, name):
        """The instances that had the call."""
        commands = [c for record in self.served.facts.records for c in record.commands]
        mine = [c for c in commands if isinstance(c, Dispatch) and c.request_id == name]
        return [each.instance_id for each in mine]


@pytest.fixture
def slots():
    """The calls that one takes at once."""
    return 1


@pytest.fixture
def limits():
    """Return the faults that end a call on an instance which hangs during its stream."""
    return {"stall_s": 1, "answer_s": 2}


@pytest.fixture
async def two(slots, limits):
    timing = Timing(step_s=STEP_S, step_per_seq_s=0.0)
    settings = standins.StandInSettings(model="tiny", max_num_seqs=slots, timing=timing)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        engines = [await enter(standins.serve(settings)) for _ in range(2)]
        proxies = [await enter(Mortal(each.url, DOWN_S)) for each in engines]
        urls = [each.url for each in proxies]
        served = await enter(serving(*urls, max_num_seqs=slots, **limits))
        yield Two(served, engines, proxies)


def to_calls(two, row):
    if row.call is not None:
        two.hurt.hurt(row.call, times=None)


async def to_instance(two, row):
    if row.instance is not None:
        await row.instance(two.hurt)


async def warm(two):
    """Both are known to be well, or they would be left alone after one failure."""
    for n in range(6):
        await two.ask(f"before {n}", tokens=1)


async def queued(two, row, **how):
    """Both are busy; the one that fails is free first."""
    await warm(two)
    earlier = len(two.served.facts.all(Arrived)), len(two.served.facts.all(FirstToken))
    others = [two.ask("short", tokens=SHORT), two.ask("long", tokens=LONG)]
    await two.served.facts.seen(FirstToken, earlier[1] + 2)
    with two.paused():
        call = two.ask("call", **how)
        await two.served.facts.seen(Arrived, earlier[0] + 3)
        assert two.places("call") == []
        to_calls(two, row)
        await to_instance(two, row)
    await asyncio.gather(*others)
    return call


async def before(two, row, **how):
    to_calls(two, row)
    call = two.ask("call", tokens=LONG if row.instance else SHORT, **how)
    await two.served.facts.seen(Arrived)
    await to_instance(two, row)
    return call


async def amid(two, row, **how):
    if row.amid is not None:
        two.hurt.hurt(row.amid)
    call = two.ask("call", tokens=LONG, **how)
    await two.served.facts.seen(FirstToken)
    await to_instance(two, row)
    return call


async def idle(two, row, **how):
    to_calls(two, row)
    if row.what.startswith("it closes"):  # what was kept after a call
        assert (await two.ask("earlier")).status == 200
    await to_instance(two, row)
    return two.ask("call", **how)


AT = {QUEUED: queued, BEFORE: before, AMID: amid, IDLE: idle}


def what_became(two, answer, name="call"):
    if answer.status == 400:
        return TOLD
    if answer.status == 504:
        assert answer.error()["code"] == "answer_timeout"
        assert "(stall_s)" in answer.error()["message"]
        return CUT
    assert answer.status == 200, answer.body
    if b'"error"' in answer.body:
        assert answer.body.endswith(b"data: [DONE]\n\n")
        return ERROR
    assert answer.headers["content-type"] == "application/json" or b"[DONE]" in answer.body
    return THERE if two.places(name)[-1] == two.name else ELSEWHERE


@pytest.mark.parametrize(("row", "moment"), CELLS, ids=lambda each: getattr(each, "what", each))
async def test_a_call_becomes_what_the_table_says(two, row, moment):
    expected = row.cells[MOMENTS.index(moment)]
    if expected == NONE:
        assert row.amid is None  # its answer is decided with its first bytes
        return
    how = {"stream": not row.whole}
    call = await AT[moment](two, row, **how)

    assert what_became(two, await call) == expected
    may_be_known = moment == IDLE and row.instance is not None  # to whoever looks at instances
    assert may_be_known or two.places("call")[0] == two.name
    await two.served.settled()


async def beside(two, moment):
    """A poisonous call, and another's that is where the instance fails at it: their answers, and
    the other's name."""
    if moment == QUEUED:
        busy = [two.ask(f"busy {n}") for n in range(4)]
        await two.served.facts.seen(FirstToken, len(two.served.facts.all(FirstToken)) + 4)
        with two.paused():
            arrived = len(two.served.facts.all(Arrived))
            villain = two.poison()
            # Whole: of a stream the first tokens may come before the instance dies.
            call = two.ask("call", stream=False)
            await two.served.facts.seen(Arrived, arrived + 2)
        await asyncio.gather(*busy)
        return await villain, await call, "call"
    if moment == IDLE:
        villain = await two.poison()
        return villain, await two.ask("call"), "call"
    # Three, so that each has one at least, and the poison can go where one is alone.
    facts, names = two.served.facts, ("call-1", "call-2", "call-3")
    earlier = len(facts.all(Arrived)), len(facts.all(FirstToken))
    calls = {each: two.ask(each, tokens=MIDDLE, stream=moment == AMID) for each in names}
    await facts.seen(Arrived, earlier[0] + 3)
    if moment == AMID:
        await facts.seen(FirstToken, earlier[1] + 3)
    villain = await two.poison()
    answers = {each: await call for each, call in calls.items()}
    place = two.places("villain")[0]
    [name] = [each for each in names if two.places(each)[0] == place]
    for each in {*names} - {name}:
        assert what_became(two, answers[each], each) in (THERE, ELSEWHERE)
    return villain, answers[name], name


# Nothing hangs here, so no limit need be short: on a busy machine two seconds are not enough.
@pytest.mark.parametrize("limits", [{"stall_s": 30, "answer_s": 60}], ids=["patient"])
@pytest.mark.parametrize("slots", [2])
@pytest.mark.parametrize(
    ("row", "moment"), POISON_CELLS, ids=lambda each: getattr(each, "what", each)
)
async def test_beside_a_poisonous_call_another_becomes_what_the_table_says(two, row, moment):
    await warm(two)
    for each in two.proxies:
        row.poison(each)
    villain, answer, name = await beside(two, moment)

    told = villain.status, villain.error()["code"]
    assert told in VILLAINS[row.poison]
    two.name = two.places("villain")[0]
    became = what_became(two, answer, name)
    expected = row.cells[MOMENTS.index(moment)]
    assert became in (THERE, ELSEWHERE) if expected == ANSWERED else became == expected
    await two.served.settled()


def test_the_page_is_what_the_tests_prove():
    assert PAGE_FILE.read_text() == PAGE, "python -m tests.faults.matrix > docs/faults.md"
