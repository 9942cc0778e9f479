"""Each thing that a soak looks for is seen where it is, and not where it is not."""

import json
from functools import partial

import msgspec
import pytest

from kairos.events import Arrived, Cancelled, Dispatch, Failed, Finished, Record, Refuse
from kairos.model import SECOND
from tests.faults.poison import POISON
from tests.soak import verdict
from tests.soak.asks import Ask, Asks
from tests.soak.client import Outcome
from tests.soak.engine import STANDIN, VLLM
from tests.soak.verdict import Ending, Sample
from tests.support import build

WELL = {"models": ["standin"], "running": 0, "max_num_seqs": 8, "kv_booked_tokens": 0}
ENDING = Ending(
    status={"waiting": 0, "instances": {"one": WELL}, "draining": {}, "not_in_use": {}},
    descriptors_before=20,
    descriptors=24,
    running_in_engines={"engine-1": 0.0},
    exit_status=0,
    said="kairos: serving",
)


def outcome(end, name="a", detail="", *, seconds=0.1, **asked):
    ask = Ask(
        id=name, at_s=0, kind=asked.pop("kind", "well"), headers={}, body=b"", streamed=True,
        says="", patience_s=1, **asked,
    )  # fmt: skip
    return Outcome(ask, end, seconds, 5 * SECOND, detail)


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


def test_what_makes_no_sense_is_answered_with_an_error_and_nothing_else():
    assert of_call(outcome("error", kind="broken", detail="400 invalid_request")) == []
    assert of_call(outcome("error", kind="stranger", detail="404 model_not_found")) == []
    assert of_call(outcome("error in stream", kind="failing")) == []
    refused = {"detail": "502 call_breaks_engines"}
    assert of_call(outcome("error", kind="poisonous", **refused)) == []
    assert "nothing was done" in of_call(outcome("error", **refused))[0]
    for kind in ("broken", "stranger", "failing", "poisonous"):
        assert f"though it was {kind}" in of_call(outcome("answered", kind=kind))[0]
    assert "nothing was done" in of_call(outcome("error", kind="broken", detail="503 x"))[0]


def test_a_deadline_may_end_a_stream_anywhere():
    for end in ("cut off", "error in stream"):
        assert of_call(outcome(end, deadline_s=1.0)) == []


def test_a_stream_that_was_told_to_wait_may_be_refused_in_it_and_no_other():
    refused = partial(outcome, "error in stream", detail="waited_too_long")
    assert of_call(refused(seconds=5.0)) == []
    assert "nothing was done" in of_call(refused(seconds=4.9))[0]
    failed = outcome("error in stream", detail="upstream_failed", seconds=5.0)
    assert "nothing was done" in of_call(failed)[0]


def test_every_call_has_one_outcome():
    one = outcome("answered")
    assert "1 of 2 calls have no outcome" in list(verdict.of_calls(2, [one], {}))
    assert "1 calls have several outcomes: a" in list(verdict.of_calls(1, [one, one], {}))


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


def test_a_refusal_is_an_end():
    refusal = [Record(2, arrived("b"), (Refuse("a", "standin"), Dispatch("b", "one")))]
    seen = [outcome("error"), outcome("answered", "b")]
    records = [*log(arrived("a")), *refusal, *log(Finished("b"))]
    assert list(verdict.of_log(records, seen, {})) == []
    assert list(verdict.of_log([*records, *log(Failed("a", "refused"))], seen, {})) == []


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


def test_one_who_closes_the_connection_at_the_last_event_has_its_answer():
    seen = [outcome("answered", hasty=True)]
    assert list(verdict.of_log(log(arrived("a"), Finished("a")), seen, {})) == []
    told = "\n".join(verdict.of_log(log(arrived("a"), Cancelled("a")), seen, {}))
    assert "answered, and not Finished" in told


def test_a_call_that_goes_on_when_its_client_is_long_gone_is_told():
    for at, count in ((30 * SECOND, 0), (36 * SECOND, 1)):
        records = [*log(arrived("a")), Record(at, Cancelled("a"))]
        assert len(list(verdict.of_log(records, [outcome("gave up")], {}))) == count


def test_calls_in_the_log_were_made_by_somebody():
    told = verdict.of_log(log(arrived("b"), Finished("b")), [], {})
    assert list(told) == ["the log: 1 calls arrived, and nobody made them: b"]


def test_an_ending_that_leaves_nothing_behind_is_right():
    assert list(verdict.of_ending(ENDING)) == []


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


def test_a_kairos_that_ends_by_itself_is_told_with_its_last_words():
    assert verdict.of_crash("x" * 9_000 + "KeyError: 'a'").endswith("xKeyError: 'a'")


def test_after_all_of_it_every_call_is_answered():
    assert list(verdict.of_recovery([outcome("answered")])) == []
    assert "not answered: error 503" in next(verdict.of_recovery([outcome("error", detail="503")]))


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


def test_a_little_may_be_kept_of_a_short_call():
    assert list(verdict.of_memory(samples(0.075, sent_mb_per_s=0, calls_per_s=10))) == []
    assert list(verdict.of_memory(samples(0.085, sent_mb_per_s=0, calls_per_s=10))) != []
    assert list(verdict.of_memory(samples(0.075, sent_mb_per_s=0))) != []
    # And of long ones no more than without it.
    assert list(verdict.of_memory(samples(0.81, calls_per_s=10))) != []


def test_memory_is_looked_at_when_the_start_is_over():
    assert verdict.growth(samples(0.0, warm_up_mb=50)).resident_mb == pytest.approx(0)
    assert verdict.growth(samples(1.0)[:74]) is None
    assert verdict.growth(samples(1.0)[:76]) is not None
    assert list(verdict.of_memory(samples(1.0)[:50])) == []


def asked(seed, kind):
    return [ask for ask, _ in zip(Asks(seed, kind, 2), range(600), strict=False)]


def test_the_same_seed_asks_the_same():
    assert asked(1, STANDIN) == asked(1, STANDIN) != asked(2, STANDIN)
    kinds = {"well", "broken", "stranger", "failing", "poisonous"}
    assert {each.kind for each in asked(1, STANDIN)} == kinds
    assert any(each.leaves for each in asked(1, STANDIN))
    assert len({each.id for each in asked(1, STANDIN)}) == 600


def test_one_agent_makes_the_poisonous_calls_some_of_them_again_and_again():
    poisons = [each for each in asked(1, STANDIN) if each.kind == "poisonous"]
    contents = [json.loads(each.body)["messages"][0]["content"] for each in poisons]
    assert all(each.startswith(POISON) for each in contents)
    assert 2 < len(set(contents)) < len(contents)
    assert {each.headers["X-Kairos-Agent"] for each in poisons} == {"villain"}
    others = [each for each in asked(1, STANDIN) if each.kind != "poisonous"]
    assert not any(POISON.encode() in each.body for each in others)


def test_a_real_engine_is_asked_for_what_it_can_do_and_to_full_length():
    asks = asked(1, VLLM)
    assert {each.kind for each in asks} == {"well", "broken", "stranger", "poisonous"}
    bodies = [json.loads(each.body) for each in asks if each.kind == "well"]
    assert all(each["ignore_eos"] and "fail" not in each for each in bodies)
    assert all(each.tokens and not each.says for each in asks)
    longest = max(sum(len(m["content"]) for m in each["messages"]) for each in bodies)
    assert longest < 4000  # bytes: its context has as many tokens


@pytest.mark.parametrize(
    ("unheard", "said", "complaint"),
    [
        (0, "the settings stay as they are: no\n" * 2, None),
        (0, "the settings stay as they are: no\n", "settings that are wrong"),
        (0, "the settings stay as they are: no\n" * 3, "settings that are wrong"),
        (1, "the settings stay as they are: no\n" * 2, "of 1 changes of the settings"),
    ],
)
def test_what_was_said_of_settings(unheard, said, complaint):
    complaints = list(verdict.of_settings({"wrong": 2, "another limit": 9}, unheard, said))
    assert [complaint in each for each in complaints] == ([True] if complaint else [])
