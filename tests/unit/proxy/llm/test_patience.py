import asyncio

import pytest

from kairos.core import Unavailable, UpstreamUnreachable
from kairos.proxy import Patience
from kairos.proxy.llm.patience import Wait


class Trial:
    """Refuses a number of times, each time after some seconds; time passes in sleep alone."""

    def __init__(self, refusals, limit_s=None, retry_after_s=None, takes_s=0.0):
        self.refusals, self.retry_after_s, self.takes_s = refusals, retry_after_s, takes_s
        self.now_s, self.slept, self.attempts = 1000.0, [], []
        self.patience = Patience(limit_s, sleep=self._sleep, now_s=lambda: self.now_s)

    async def _sleep(self, seconds):
        self.slept.append(seconds)
        self.now_s += seconds

    async def ask(self, headers):
        self.attempts.append(headers["X-Kairos-Attempt"])
        self.now_s += self.takes_s
        if len(self.attempts) > self.refusals:
            return {"said": headers}
        refusal = Unavailable("full")
        refusal.retry_after_s = self.retry_after_s
        raise refusal

    async def run(self, **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.patience.until_answered(self.ask, named)


@pytest.mark.parametrize(("limit_s", "slept"), [(1, [1]), (6, [1, 2]), (7, [1, 2, 4]), (0, [])])
async def test_it_gives_up_rather_than_wait_past_the_limit(limit_s, slept):
    trial = Trial(99, limit_s=limit_s)
    with pytest.raises(Unavailable):
        await trial.run()
    assert trial.slept == slept


async def test_a_call_that_waits_is_shown_with_its_reason_until_it_is_answered():
    trial = Trial(2, limit_s=600, retry_after_s=7)
    shown, slept = [], trial._sleep

    async def sleep(seconds):
        shown.append(trial.patience.waits)
        await slept(seconds)

    trial.patience._sleep = sleep
    await trial.run()

    assert shown == [
        [Wait("full", since_s=1000.0, again_s=1007.0, until_s=1600.0)],
        [Wait("full", since_s=1000.0, again_s=1014.0, until_s=1600.0)],
    ]
    assert trial.patience.waits == []


async def test_what_is_left_fails_at_once_and_is_not_asked_again():
    trial = Trial(99, limit_s=600)

    async def sleep(seconds):
        trial.patience.leave()
        await asyncio.Event().wait()

    trial.patience._sleep = sleep
    for _ in range(2):
        with pytest.raises(Unavailable) as raised:
            await trial.run()
        assert not raised.value.is_final, "a resumed run asks again"
    assert len(trial.attempts) == 2
    assert trial.patience.waits == []


async def test_a_call_that_is_cancelled_while_it_waits_ends():
    trial, waits = Trial(99, limit_s=600), asyncio.Event()

    async def sleep(seconds):
        waits.set()
        await asyncio.Event().wait()

    trial.patience._sleep = sleep
    task = asyncio.create_task(trial.run())
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert trial.patience.waits == []


async def test_a_call_at_which_engines_break_fails_after_five_times_in_a_row():
    trial, errors = Trial(0, limit_s=600), []

    async def ask(headers):
        refusal = Unavailable("broke")
        if len(errors) != 3:
            refusal.code = UpstreamUnreachable.code
        errors.append(refusal)
        raise refusal

    with pytest.raises(Unavailable) as raised:
        await trial.patience.until_answered(ask, {})
    assert len(errors) == 4 + 5
    assert raised.value.is_final


async def test_it_never_waits_past_the_deadline():
    trial = Trial(99, limit_s=600)
    with pytest.raises(Unavailable):
        await trial.run(X_Kairos_Deadline=str(1_003_000_000))
    assert trial.slept == [1, 2]
