"""LLM calls that come over the bus."""

import msgspec
import pytest

from kairos.cluster.pool import bus_calls as calls_module
from kairos.core import Arrived, Cancelled, Topic
from tests.support.cluster.pool_world import BODY, REPLY_TO, Answer, World

OTHER = f"{Topic.REPLIES}other"


@pytest.fixture
def world():
    with World(max_held_bytes=100) as world:
        yield world
        assert world.problems == []


@pytest.fixture
def process(world):
    process = world.process()
    world.assign(process)
    world.flow()
    return process


def answers(world, name="b", topic=REPLY_TO):
    said = [m for m in world.logs[topic] if m.headers["kairos-request-id"] == name]
    return [msgspec.json.decode(m.value) for m in said]


def code(world, name="b"):
    [answer] = answers(world, name)
    return answer["status"], answer["body"]["error"]["code"]


def is_done(world, process):
    """Nothing is kept of it, and a successor need not hear of it."""
    world.sleep(2)
    assert process.active.open_calls.all() == []
    assert len(process.member.balancer.ledger) == process.member.balancer.waiting == 0
    assert list(process.active._publisher.offsets._undone) == []
    assert process.calls._calls == {}
    assert process.calls._held_bytes == 0
    assert process.engine.calls._expected == {}
    return True


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (Answer(500, b'{"error":{"message":"oh"}}'), 500, {"error": {"message": "oh"}}),
        (Answer(200, b"plain", "text/plain"), 200, "plain"),
        (Answer(200, b"\xff", "text/plain"), 200, "\N{REPLACEMENT CHARACTER}"),
        (Answer(204, b"", "text/plain"), 204, None),
        (Answer(200, b"[NaN]"), 200, "[NaN]"),
    ],
)
def test_what_the_engine_says_is_passed_on(world, process, answer, status, body):
    world.ask("b")
    world.flow()
    world.run("b").answer(answer)
    world.flow()
    assert answers(world) == [{"status": status, "body": body}]
    assert is_done(world, process)


def test_an_engine_that_is_gone_is_said(world, process):
    world.ask("b")
    world.flow()
    world.run("b").end("gone")
    world.flow()
    [answer] = answers(world)
    assert (answer["status"], answer["retry_after"]) == (503, "1")
    assert code(world) == (503, "upstream_unreachable")
    assert is_done(world, process)


def test_half_an_answer_is_none(world, process):
    world.ask("b")
    world.flow()
    world.run("b").answer(Answer(200, b"half", "text/plain", broke=OSError()))
    world.flow()
    assert code(world) == (502, "upstream_failed")
    assert is_done(world, process)


def test_an_unexpected_error_is_answered_too(world, process, caplog):
    world.ask("b")
    world.flow()
    world.run("b").fail(ZeroDivisionError())
    world.flow()
    assert code(world) == (500, "internal_error")
    assert "error of Kairos's own" in caplog.text
    assert is_done(world, process)


def test_a_call_that_is_refused_at_arrival_is_answered(world, process):
    world.ask("b", value=b'{"messages":[],"model":"unknown"}')
    world.flow()
    assert code(world) == (404, "model_not_found")
    assert is_done(world, process)
    assert not any(headers.get("kairos-cause") for _, headers, _ in world.records())


def test_a_call_that_waits_too_long_is_answered(world, process):
    for name in "abcd":
        world.ask(name)
    world.flow()
    world.sleep(32)
    assert code(world, "d") == (503, "waited_too_long")
    for name in "abc":
        world.run(name).end()
    assert is_done(world, process)


def test_a_reply_that_the_cluster_refuses_ends_the_call_all_the_same(world, process, caplog):
    process.outbox.refused.add(REPLY_TO)
    world.ask("b")
    world.flow()
    world.run("b").end()
    world.flow()
    assert "is lost" in caplog.text
    assert is_done(world, process)


def test_a_reply_is_sent_when_the_bus_takes_messages_again(world, process):
    world.ask("b")
    world.flow()
    process.outbox.is_full = True
    world.run("b").end()
    world.sleep(3)
    assert process.active.open_calls.get("b") is not None
    process.outbox.is_full = False
    world.sleep(2)
    assert [answer["status"] for answer in answers(world)] == [200]
    assert is_done(world, process)


def test_an_answer_that_is_too_large_for_the_bus_is_said_to_be(world, process):
    world.ask("b")
    world.flow()
    world.run("b").answer(Answer(200, b'"' + b"x" * (1 << 20) + b'"'))
    world.flow()
    assert code(world) == (502, "upstream_failed")
    assert is_done(world, process)


def seconds(world, number):
    return str(world.clock.now() + number * 1_000_000)


def test_a_call_that_comes_after_its_deadline_is_not_made(world, process):
    world.ask("b", **{"kairos-deadline": seconds(world, -1)})
    world.flow()
    assert code(world) == (504, "deadline_exceeded")
    assert world.starts == []
    assert is_done(world, process)


def test_a_call_that_runs_at_its_deadline_is_stopped(world, process):
    world.ask("b", **{"kairos-deadline": seconds(world, 5)})
    world.flow()
    world.sleep(4)
    assert len(world.running) == 1
    world.sleep(2)
    assert world.running == []
    assert code(world) == (504, "deadline_exceeded")
    assert is_done(world, process)


def test_who_asks_again_before_the_call_that_it_gave_up_began_is_answered(world, process):
    """A consumer that loses a partition gives its calls up, and may get it back at once."""
    world.ask("b")
    world.tell(REPLY_TO, Cancelled("b"))
    world.ask("b")
    world.flow()
    world.run("b").end()
    world.flow()
    assert [answer["status"] for answer in answers(world)] == [200]
    assert is_done(world, process)


def test_who_asks_again_before_the_call_that_it_gave_up_has_ended_is_told_to_come_back(
    world, process
):
    world.ask("b")
    world.flow()
    world.tell(REPLY_TO, Cancelled("b"))
    world.ask("b")
    world.flow()
    assert code(world) == (503, "request_in_flight")
    assert answers(world)[0]["retry_after"] == "1"
    world.ask("b")
    world.flow()
    world.run("b").end()
    world.flow()
    assert [answer["status"] for answer in answers(world)] == [503, 200]
    assert is_done(world, process)


def test_a_call_asked_twice_is_made_once(world, process):
    world.ask("b")
    world.ask("b")
    world.flow()
    world.ask("b")
    world.flow()
    assert len(world.starts) == 1
    world.run("b").end()
    world.flow()
    assert len(answers(world)) == 1
    assert is_done(world, process)


def test_who_asks_while_the_answer_is_on_its_way_is_answered_too(world, process):
    world.ask("b")
    world.flow()
    world.run("b").end("refused")
    world.settle()
    process.outbox.deliver(REPLY_TO)
    world.settle()
    world.ask("b")
    world.ask("b", OTHER)
    world.flow()
    assert [answer["status"] for answer in answers(world)] == [500, 500]
    assert [answer["status"] for answer in answers(world, topic=OTHER)] == [500]
    assert len(world.starts) == 1
    assert is_done(world, process)


def test_who_asks_afterwards_is_given_the_answer_again(world, process):
    world.ask("b")
    world.flow()
    world.run("b").end()
    world.flow()
    world.ask("b")
    world.ask("b", OTHER)
    world.flow()
    assert len(answers(world)) == 2
    assert len(answers(world, topic=OTHER)) == 1
    assert len(world.starts) == 1
    process.outbox.is_full = True
    world.ask("b")
    world.settle()
    process.outbox.is_full = False
    assert is_done(world, process)


def test_a_call_that_failed_is_made_again_when_it_is_asked_again(world, process):
    for how in ("refused", "finished"):
        world.ask("b")
        world.flow()
        world.run("b").end(how)
        world.sleep(1)
    assert [answer["status"] for answer in answers(world)] == [500, 200]
    assert is_done(world, process)


def test_the_answers_that_are_kept_are_bounded(world, process, monkeypatch):
    monkeypatch.setattr(calls_module, "ANSWERS_KEPT_BYTES", 150)
    for n in range(10):
        world.ask(f"b{n}")
        world.flow()
        world.run(f"b{n}").end()
        world.flow()
    kept = process.calls._answered
    assert [*kept] == ["b7", "b8", "b9"] or len(kept) < 5
    assert process.calls._answered_bytes == sum(map(len, kept.values())) <= 150
    assert next(reversed(kept)) == "b9"


def test_answers_that_fill_their_bound_to_the_last_byte_are_all_kept(world, process, monkeypatch):
    for name in ("a", "b"):
        world.ask(name)
        world.flow()
        world.run(name).end()
        world.flow()
        if name == "a":
            [first] = world.logs[REPLY_TO]
            monkeypatch.setattr(calls_module, "ANSWERS_KEPT_BYTES", 2 * len(first.value))
    for name in ("a", "b"):
        world.ask(name)
    world.flow()
    assert [len(answers(world, name)) for name in ("a", "b")] == [2, 2]
    assert len(world.starts) == 2


def test_calls_hold_a_bounded_number_of_bytes(world, process):
    value = b'{"messages":[{"role":"user","content":"%b"}]}' % (b"x" * 20)
    for name in "abc":
        world.ask(name, value=value)
    world.flow()
    assert code(world, "b") == (429, "too_much_held")
    assert answers(world, "a") == []
    world.run("a").end()
    world.flow()
    world.ask("d", value=value)
    world.flow()
    assert [running.name for running in world.running] == ["d"]
    world.run("d").end()
    assert is_done(world, process)


def test_a_call_named_as_one_over_http_must_wait_for_it(world, process):
    world.call(process, "x")
    world.flow()
    world.ask("x")
    world.flow()
    assert code(world, "x") == (503, "request_in_flight")
    assert process.active.open_calls.get("x").dispatch, "its room is not given away"
    world.run("x").end()
    world.flow()
    assert process.clients[0].status == 200
    assert is_done(world, process)


def test_a_call_named_as_one_of_another_gateway_must_wait_for_it(world, process):
    client = world.call(world.process(), "x")
    world.flow()
    world.ask("x")
    world.flow()
    assert code(world, "x") == (503, "request_in_flight")
    world.run("x").end()
    world.flow()
    assert client.status == 200
    assert is_done(world, process)


def test_of_two_that_arrive_at_once_under_one_name_one_is_refused(world, process):
    client = world.call(world.process(), "x")
    world.processes[1].outbox.deliver(Topic.REQUESTS)
    world.ask("x")
    world.flow()
    assert len(world.starts) == 1
    world.run("x").end()
    world.flow()
    assert client.status == 200 or answers(world, "x")[-1]["status"] == 200
    assert client.has_ended
    assert is_done(world, process)


def test_a_process_that_ends_waits_for_its_calls_for_a_while(world, process):
    world.ask("b")
    world.flow()
    finishing = world.loop.create_task(process.calls.finish(10))
    world.sleep(5)
    assert not finishing.done()
    world.run("b").end()
    world.flow()
    assert finishing.done()
    assert len(answers(world)) == 1


def test_a_process_that_ends_leaves_what_takes_too_long_to_others(world, process):
    world.ask("b")
    world.flow()
    world.leave(process)
    finishing = world.loop.create_task(process.calls.finish(10))
    world.sleep(11)
    assert finishing.done()
    assert answers(world) == []
    assert process.calls._tasks == set()
    world.kill(process)
    successor = world.process()
    world.assign(successor)
    world.sleep(8)
    world.run("b").end()
    world.flow()
    assert [answer["status"] for answer in answers(world)] == [200]
    assert is_done(world, successor)


def test_a_process_that_ends_while_the_bus_is_away_ends(world, process):
    world.ask("b")
    world.flow()
    process.is_cut_off = True
    world.run("b").end()
    finishing = world.loop.create_task(process.calls.finish(10))
    world.sleep(13)
    assert finishing.done()


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": b"{}"},
        {"value": b'{"messages":[],"stream":true}'},
        {"value": b'{"messages":[{"content":"Hello"}]}'},
        {"value": b'{"messages":[],"n":0}'},
        {"value": b'{"messages":[],"tools":["\xff"]}'},
        {"kairos-attempt": "0"},
        {"reply_to": "kairos.events"},
    ],
)
def test_a_call_that_makes_no_sense_is_a_dead_letter(world, process, wrong):
    world.ask("b", **wrong)
    world.flow()
    [letter] = world.logs[Topic.DEAD_LETTERS]
    assert letter.value == wrong.get("value", BODY)
    assert letter.headers["kairos-dead-topic"] == Topic.REQUESTS
    assert letter.headers["kairos-dead-group"] == "kairos.balancer.pool"
    assert "InvalidRequest" in letter.headers["kairos-dead-reason"]
    assert is_done(world, process)


def test_a_dead_letter_that_is_too_large_goes_without_its_content(world, process):
    world.ask("b", value=b"x" * ((1 << 20) - 100))
    world.flow()
    [letter] = world.logs[Topic.DEAD_LETTERS]
    assert letter.value is None
    assert letter.headers["kairos-dead-topic"] == Topic.REQUESTS
    assert is_done(world, process)


def test_of_a_call_over_the_bus_as_much_is_known_as_over_http():
    messages = [{"role": "user", "content": "x" * 999}]
    body = {"model": "m", "messages": messages, "max_tokens": 7}
    with World() as world:
        world.assign(world.process())
        for name in ("b", "c"):
            world.ask(name, value=msgspec.json.encode(body), **{"kairos-agent": "writer"})
            world.flow()
            usage = b'{"usage":{"prompt_tokens":500,"completion_tokens":1}}'
            world.run(name).answer(Answer(body=usage))
            world.flow()
        records = [record.event for record, _, _ in world.records()]

    first, second = (event.request for event in records if isinstance(event, Arrived))
    prompt = msgspec.json.encode(messages)[:-1]
    assert first.prompt_tokens == first.prefix_units == len(prompt) // 4
    assert first.prefix == second.prefix
    assert len(first.prefix) > 2
    assert first.completion_limit == second.completion_limit == 7
    assert second.prompt_tokens == pytest.approx(500, abs=10)  # as the engine counted the first
