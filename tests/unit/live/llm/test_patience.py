import pytest

from kairos.errors import InvalidRequest, Unavailable
from kairos.live.llm.patience import Patience


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


async def test_the_headers_are_passed_on_with_the_attempt_counted_up():
    trial = Trial(1)
    said = (await trial.run(X_Kairos_Attempt="7", other="o"))["said"]
    assert said == {"X-Kairos-Attempt": "8", "other": "o"}
    assert trial.attempts == ["7", "8"]


async def test_without_a_limit_the_fifth_refusal_is_the_last():
    trial = Trial(9, retry_after_s=1)
    with pytest.raises(Unavailable, match="full"):
        await trial.run()
    assert trial.slept == [1, 1, 1, 1]


async def test_with_a_limit_it_waits_longer_each_time_up_to_5_s():
    trial = Trial(6, limit_s=600)
    await trial.run()
    assert trial.slept == [1, 2, 4, 5, 5, 5]


async def test_it_waits_as_long_as_it_is_told_where_that_is_longer():
    trial = Trial(5, limit_s=600, retry_after_s=3)
    await trial.run()
    assert trial.slept == [3, 3, 4, 5, 5]


@pytest.mark.parametrize(("limit_s", "slept"), [(1, [1]), (6, [1, 2]), (7, [1, 2, 4]), (0, [])])
async def test_it_gives_up_rather_than_wait_past_the_limit(limit_s, slept):
    trial = Trial(99, limit_s=limit_s)
    with pytest.raises(Unavailable):
        await trial.run()
    assert trial.slept == slept


async def test_the_limit_counts_from_the_first_refusal():
    trial = Trial(1, limit_s=10, takes_s=600)
    await trial.run()
    assert trial.slept == [1]


async def test_it_never_waits_past_the_deadline():
    trial = Trial(99, limit_s=600)
    with pytest.raises(Unavailable):
        await trial.run(X_Kairos_Deadline=str(1_003_000_000))
    assert trial.slept == [1, 2]


async def test_attempts_stay_within_what_a_header_may_say():
    trial = Trial(4)
    await trial.run(X_Kairos_Attempt="997")
    assert trial.attempts == ["997", "998", "999", "999", "999"]


async def test_other_errors_end_it_at_once():
    async def ask(headers):
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest):
        await Patience(600).until_answered(ask, {})
