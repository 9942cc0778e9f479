"""Each thing that a soak looks for is seen where it is, and not where it is not."""

import msgspec
import pytest

from kairos.core import SECOND, Arrived, Cancelled, Failed, Finished, Record
from tests.soak import verdict
from tests.soak.client import made_up
from tests.soak.verdict import Ending, Sample
from tests.support.simulate import build

WELL = {"models": ["standin"], "running": 0, "max_num_seqs": 8, "kv_booked_tokens": 0}
ENDING = Ending(
    status={"waiting": 0, "instances": {"one": WELL}, "draining": {}, "not_in_use": {}},
    descriptors_before=20,
    descriptors=24,
    running_in_engines={"engine-1": 0.0},
    exit_status=0,
    said="kairos: serving",
)


def outcome(end, name="a", detail="", **given):
    return made_up(end, detail, name=name, ended_at=5 * SECOND, **given)


def arrived(name):
    return Arrived(build.request(name))


def log(*events, commands=()):
    return [Record(at, event, commands) for at, event in enumerate(events)]


def of_call(each, *hurt):
    return list(verdict.of_calls(1, [each], {"a": hurt} if hurt else {}))


@pytest.mark.parametrize(
    ("end", "detail", "hurt"),
    [
        ("answered", "", []),
        ("left", "", []),
        ("gave up", "", []),
        ("error", "503 no_instance", []),
        ("error", "429 queue_full", []),
        ("error", "500 500", ["Status"]),
        ("error in stream", "upstream_failed", ["Cut"]),
        ("cut off", "", ["Cut"]),
        ("wrong answer", "", ["WrongBody"]),
        ("answered", "", ["Delay"]),
    ],
)
def test_these_ends_are_right(end, detail, hurt):
    assert of_call(outcome(end, detail=detail), *hurt) == []


@pytest.mark.parametrize(
    ("end", "detail", "hurt", "said"),
    [
        ("no answer", "", ["Cut"], "no answer"),
        ("overdue", "", ["Stall"], "overdue"),
        ("wrong error", "", ["Status"], "wrong error"),
        ("wrong answer", "", [], "what an engine said was right"),
        ("wrong answer", "", ["Cut"], "what an engine said was cut"),
        ("error", "500 internal_error", [], "error 500 internal_error, and nothing was done"),
        ("error in stream", "", [], "error in stream, and nothing was done"),
        ("cut off", "", [], "cut off, and nothing was done"),
    ],
)
def test_these_ends_are_wrong(end, detail, hurt, said):
    (complaint,) = of_call(outcome(end, detail=detail), *hurt)
    assert said in complaint
    assert complaint.startswith("1 calls: ")


def test_only_a_poisonous_call_is_rightly_refused_as_one_that_breaks_engines():
    found, sound = (
        outcome("error", detail="502 call_breaks_engines", kind=kind)
        for kind in ("poisonous", "well")
    )
    assert of_call(found) == []
    (complaint,) = of_call(sound)
    assert "502 call_breaks_engines, and nothing was done" in complaint


GOOD_LOGS = [
    (log(arrived("a"), Finished("a")), "answered", []),
    (log(arrived("a"), Failed("a", "x")), "error in stream", ["Cut"]),
    (log(arrived("a"), Failed("a", "x")), "answered", ["Cut"]),  # after [DONE]
    (log(arrived("a"), Cancelled("a")), "left", []),
    (log(arrived("a"), Finished("a")), "left", []),  # as it ended
    ([], "error", []),  # refused at the door
]


@pytest.mark.parametrize(("records", "end", "hurt"), GOOD_LOGS)
def test_a_log_that_agrees_with_the_clients_is_right(records, end, hurt):
    hurts = {"a": hurt} if hurt else {}
    assert list(verdict.of_log(records, [outcome(end)], hurts)) == []


@pytest.mark.parametrize(
    ("records", "end", "said"),
    [
        (log(arrived("a")), "left", "arrived, and have no end: a"),
        (log(arrived("a"), Failed("a", "x"), Failed("a", "x")), "error", "have several ends: a"),
        (log(arrived("a"), Finished("a"), Cancelled("a")), "left", "have several ends: a"),
        (log(arrived("a"), arrived("a"), Finished("a")), "answered", "more than once: a"),
        (log(Finished("a")), "answered", "ended, and never arrived: a"),
        (log(arrived("a"), Cancelled("a")), "answered", "answered, and not Finished: a"),
        ([], "answered", "answered, and not Finished: a"),
        (log(arrived("a"), Finished("a")), "error", "clients saw an error: a"),
    ],
)
def test_a_log_that_does_not_is_told(records, end, said):
    assert said in "\n".join(verdict.of_log(records, [outcome(end)], {}))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"status": ENDING.status | {"waiting": 2}}, "2 requests still wait"),
        (
            {"status": ENDING.status | {"instances": {"one": WELL | {"running": 1}}}},
            "instance one has 1 calls booked",
        ),
        (
            {"status": ENDING.status | {"instances": {"one": WELL | {"kv_booked_tokens": 64}}}},
            "instance one has 0 calls booked, 64 tokens",
        ),
        (
            {"status": ENDING.status | {"draining": {"one": 3}}},
            "one is to stay, and drains: 3 calls",
        ),
        ({"status": ENDING.status | {"not_in_use": {"one": "/health"}}}, "and not in use: /health"),
        ({"running_in_engines": {"engine-1": 2.0}}, "engine-1 still works on 2 calls"),
        ({"descriptors": 60}, "60 descriptors are open, 20 were"),
        ({"exit_status": 1}, "ended with status 1"),
        ({"said": "oh\nTraceback (most recent call last):\n  boom"}, "boom"),
        ({"said": "Task exception was never retrieved"}, "never retrieved"),
    ],
)
def test_an_ending_that_leaves_something_behind_is_told(changed, said):
    (complaint,) = verdict.of_ending(msgspec.structs.replace(ENDING, **changed))
    assert said in complaint


def samples(resident_mb_per_s, sent_mb_per_s=1.0, calls_per_s=0, warm_up_mb=0.0):
    return [
        Sample(
            float(second),
            int(1e8 + 1e6 * (resident_mb_per_s * second + warm_up_mb * (second < 30))),
            calls_per_s * second,
            int(1e6 * sent_mb_per_s * second),
        )
        for second in range(120)
    ]


def test_memory_that_grows_as_fast_as_bodies_come_is_told():
    seen = verdict.growth(samples(1.0, calls_per_s=5))
    rates = (seen.resident_mb, seen.sent_mb, seen.calls)
    assert rates == pytest.approx((3600, 3600, 5 * 3600))
    assert list(verdict.of_memory(samples(1.0))) != []
    assert list(verdict.of_memory(samples(0.1))) == []
