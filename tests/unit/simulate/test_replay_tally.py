"""What is told of a replay."""

from collections import Counter

import pytest

from kairos.core import Request
from kairos.proxy import Usage
from kairos.simulate.replay import Tally
from kairos.simulate.replay_client import NOT_SENT, CallFailed, ReplayedCall


def request(number=0):
    return Request(
        id=f"r{number}",
        workflow_id=f"w{number}",
        app="chat",
        workflow_started_at=0,
        arrived_at=0,
        prompt_tokens=100,
        completion_tokens=10,
    )


def told(tally):
    return tally.result(run_id="run", model="m", elapsed_us=0, retries=Counter(), exact=True)


def test_a_workflow_begins_late_when_it_is_over_ten_milliseconds():
    tally = Tally(2)
    tally.sent_first(10_000)
    tally.sent_first(10_001)

    assert (told(tally).late_starts, told(tally).worst_start_s) == (1, 0.010_001)


@pytest.mark.parametrize(("begun", "kept_up"), [(99, False), (100, True)])
def test_it_has_not_kept_up_when_more_than_one_of_a_hundred_began_late(begun, kept_up):
    tally = Tally(100)
    tally.begun = begun
    tally.sent_first(10_001)

    assert told(tally).kept_up is kept_up


def test_it_has_not_kept_up_when_a_call_could_not_be_sent():
    tally = Tally(1)
    tally.call_failed(request(), CallFailed(NOT_SENT, "no room"), 5)

    assert not told(tally).kept_up


def test_the_worst_deviation_is_the_farthest_from_nothing():
    tally = Tally(3)
    for number, (prompt, completion) in enumerate([(97, 10), (102, None), (100, 12)]):
        usage = Usage(prompt_tokens=prompt, completion_tokens=completion)
        tally.call_ended(request(number), ReplayedCall(None, usage), 9)

    deviation = told(tally).prompt_deviation
    assert (deviation.calls, deviation.median, deviation.worst) == (3, 0, -3)
    deviation = told(tally).completion_deviation
    assert (deviation.calls, deviation.median, deviation.worst) == (2, 1, 2)
