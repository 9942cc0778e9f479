"""What processes of a pool tell each other, read as untrusted input."""

import msgspec
import pytest

from kairos.cluster import Alive, ReceivedMessage, Told, check_event, read_call, read_told
from kairos.cluster.decisions.messages import Declined
from kairos.cluster.pool.bus_calls import TENANT
from kairos.cluster.pool.messages import Orders, check_request, read_call_headers
from kairos.core import (
    NAME_PATTERN,
    PREFIX_MARKS,
    SECOND,
    Arrived,
    Budget,
    Dispatch,
    Failed,
    Finished,
    InstanceJoined,
    InvalidRequest,
    PlanDeclared,
    PlannedOperator,
    PlannedWork,
    Progressed,
    QueueFull,
    RateLimit,
    RateLimits,
    Refuse,
    Sources,
    Unavailable,
)
from tests.support.simulate import build

TRACE = f"00-{1:032x}-{1:016x}-01"
GOOD = {"kairos-request-id": "r", "kairos-reply-to": "kairos.replies.host"}


def as_sent(value):
    return msgspec.json.encode(value)


@pytest.mark.parametrize(
    "event",
    [Arrived(build.request("r")), Finished("r", 1, 2, 3), Failed("r", "why"), Progressed({"r": 7})],
)
def test_facts_are_read_as_they_were_told(event):
    told = Told("p", event)
    assert msgspec.json.decode(as_sent(told), type=Told) == told


def test_orders_are_read_as_they_were_given():
    declined = Declined.of("r", QueueFull(7))
    limits = RateLimits(tokens=RateLimit(600, 1, 2))
    dispatch = Dispatch("r", "e", "overdue", 3, 4, 5.0, limits=limits)
    orders = Orders((dispatch, Refuse("r", None), declined), (1, 2, 0))
    assert msgspec.json.decode(as_sent(orders), type=Orders) == orders


def test_an_error_is_the_same_on_the_other_side():
    told = QueueFull(7)
    told.limits = RateLimits(RateLimit(60, 0, 1_000))
    error = Declined.of("r", told).error()
    assert (error.status, error.code, error.retry_after_s) == (429, "queue_full", 1)
    assert str(error) == str(QueueFull(7))
    assert error.limits == told.limits
    assert Declined.of("r", error) == Declined.of("r", told)
    assert (Unavailable.status, Unavailable.code) == (503, "unavailable"), "of the class, unchanged"


HOSTILE = [
    b"",
    b"null",
    b"[]",
    b"{",
    b"{}",
    b"\xff\xfe",
    b'{"performer":"p"}',
    b'{"performer":"","event":{"type":"Finished","request_id":"r"}}',
    b'{"performer":"a b","event":{"type":"Finished","request_id":"r"}}',
    b'{"performer":"' + b"p" * 300 + b'","event":{"type":"Finished","request_id":"r"}}',
    b'{"performer":"p","event":{"type":"Unknown","request_id":"r"}}',
    b'{"performer":"p","event":{"type":"Finished","request_id":7}}',
    b'{"performer":"p","event":{"type":"Arrived","request":null}}',
    b'{"performer":"p","event":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
]


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("kind", [Told, Alive, Orders])
def test_what_makes_no_sense_is_refused(kind, value):
    if kind is Alive and b'"performer":"p"' in value:
        return  # what else it says does not matter
    with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError, RecursionError)):
        msgspec.json.decode(value, type=kind)


@pytest.mark.parametrize(
    "declined",
    [{"status": 99_999}, {"status": 200}, {"retry_after_s": -1}, {"retry_after_s": 10**9}],
)
def test_an_order_cannot_make_a_gateway_answer_nonsense(declined):
    said = {"type": "Declined", "request_id": "r", "status": 503, "code": "c", "message": "m"}
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(as_sent({"commands": [said | declined]}), type=Orders)


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": 0},
        {"prompt": -5},
        {"prompt": 10**400},
        {"completion": 0},
        {"completion": 10**30},
        {"at": -1},
        {"at": 10**19},
        {"workflow_started_at": -1},
        {"workflow_started_at": 10**400},
        {"attempt": 0},
        {"completion_limit": 0},
        {"completion_limit": 10**30},
        {"prefix_units": -1},
        {"prefix_units": 10**30},
        {"prefix": (1 << 64,)},
        {"prefix": (1,) * (len(PREFIX_MARKS) + 1)},
    ],
)
def test_numbers_that_no_request_has_are_refused(wrong):
    with pytest.raises(InvalidRequest):
        check_request(build.request("r", **wrong))


@pytest.mark.parametrize("name", ["", " ", "a b", "x" * 129, "a\n", "-a"])
def test_a_request_has_an_identifier(name):
    with pytest.raises(InvalidRequest):
        check_request(build.request(name))


@pytest.mark.parametrize("field", ["calls", "tokens", "wall_us"])
@pytest.mark.parametrize("number", [0, -1, 10**16])
def test_a_budget_is_a_number_that_a_client_can_ask_for(field, number):
    check_request(build.request("r", budget=Budget(**{field: 1})))
    with pytest.raises(InvalidRequest):
        check_request(build.request("r", budget=Budget(**{field: number})))


def test_an_ordinary_request_is_fine():
    check_request(build.request("r", at=5 * SECOND))
    prefix = (0,) * (len(PREFIX_MARKS) - 1) + ((1 << 64) - 1,)
    check_request(build.request("r", completion_limit=1, prefix=prefix, prefix_units=1_000_000))


@pytest.mark.parametrize("tokens", [-1, 1 << 48, 10**30])
@pytest.mark.parametrize(
    "event", [lambda n: Finished("r", None, n), lambda n: Progressed({"r": n})]
)
def test_tokens_that_no_engine_counts_are_refused(event, tokens):
    check_event(event(0))
    check_event(event((1 << 48) - 1))
    with pytest.raises(InvalidRequest):
        check_event(event(tokens))


def test_a_plan_that_is_told_is_checked_as_one_that_is_declared():
    first, circle = PlannedOperator("a"), PlannedOperator("b", (1,))

    def told(*operators):
        event = PlanDeclared("default", "app", PlannedWork(operators))
        return msgspec.json.encode(Told("p1", event))

    assert read_told(told(first)).event.plan.operators == (first,)
    with pytest.raises(InvalidRequest, match="b:"):
        read_told(told(first, circle))


def test_all_headers_of_a_call_are_read():
    headers = read_call_headers(
        GOOD
        | {
            "kairos-msg-id": "w:1",
            "kairos-app": "app",
            "kairos-agent": "agent",
            "kairos-upstream": "user",
            "kairos-started-at": "17",
            "kairos-parent": "r0",
            "kairos-attempt": "2",
            "kairos-deadline": "99",
            "kairos-budget-calls": "3",
            "kairos-budget-tokens": "1000000000000",
            "kairos-budget-ms": "5",
            "something": "else",
        }
    )
    assert (headers.workflow_id, headers.app, headers.agent) == ("w:1", "app", "agent")
    assert (headers.upstream, headers.parent) == ("user", "r0")
    assert (headers.started_at, headers.attempt, headers.deadline) == (17, 2, 99)
    assert headers.budget == Budget(3, 10**12, 5_000)


@pytest.mark.parametrize("missing", [*GOOD])
def test_a_call_says_its_name_and_where_its_answer_goes(missing):
    with pytest.raises(InvalidRequest):
        read_call_headers({name: text for name, text in GOOD.items() if name != missing})


TOPICS = [
    "kairos.replies.",
    "kairos.replies",
    "kairos.requests",
    "kairos.events",
    "kairosxrepliesxhost",
    "kairos.replies.a/b",
    "kairos.replies.a b",
    "kairos.replies.host\n",
    "x.kairos.replies.host",
    "kairos.replies." + "a" * 201,
]


@pytest.mark.parametrize("topic", TOPICS)
def test_an_answer_goes_to_a_topic_for_replies_and_nowhere_else(topic):
    with pytest.raises(InvalidRequest):
        read_call_headers(GOOD | {"kairos-reply-to": topic})


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("kairos-request-id", "a b"),
        ("kairos-request-id", "r" * 129),
        ("kairos-msg-id", ""),
        ("kairos-msg-id", "\x00"),
        ("kairos-app", "a.b"),
        ("kairos-agent", "x" * 65),
        ("kairos-upstream", "é"),
        ("kairos-parent", "{}"),
        ("kairos-started-at", "soon"),
        ("kairos-started-at", "-1"),
        ("kairos-started-at", "9" * 19),
        ("kairos-attempt", "0"),
        ("kairos-attempt", "1000"),
        ("kairos-deadline", "-1"),
        ("kairos-deadline", "x"),
        ("kairos-budget-calls", "0"),
        ("kairos-budget-tokens", "1000000000001"),
        ("kairos-budget-ms", "x"),
    ],
)
def test_each_header_is_checked(header, text):
    with pytest.raises(InvalidRequest):
        read_call_headers(GOOD | {header: text})


def test_names_are_those_of_envelopes():
    from kairos.cluster.pool.messages import CallHeaders

    schema = msgspec.json.schema(CallHeaders)["$defs"]["CallHeaders"]["properties"]
    [named] = [each for each in schema["kairos-app"]["anyOf"] if each["type"] == "string"]
    assert named["pattern"] == NAME_PATTERN


def message(value=b'{"messages":[]}', *, at=5, headers=GOOD):
    return ReceivedMessage("kairos.requests", 0, 3, at, "pool", value, headers)


def test_a_call_is_a_request_of_the_default_tenant():
    said = {
        "kairos-msg-id": "w",
        "kairos-parent": "r0",
        "kairos-attempt": "3",
        "kairos-budget-calls": "9",
        "traceparent": TRACE,
    }
    value = b'{"messages":[],"model":"m","max_tokens":9}'
    call = read_call(message(value, headers=GOOD | said), now=10)
    request = call.request
    assert (request.id, request.tenant, request.workflow_id) == ("r", TENANT, "w")
    assert (request.parent_ids, request.attempt, request.model) == (("r0",), 3, "m")
    assert (request.arrived_at, request.workflow_started_at) == (5, 10)
    assert request.completion_tokens == 9
    assert request.budget == Budget(calls=9)
    assert request.sources == Sources("declared")
    assert call.reply_to == {"kairos.replies.host"}
    assert call.traceparent == TRACE


def test_a_call_without_a_workflow_is_one_of_its_own():
    request = read_call(message(), now=10).request
    assert (request.workflow_id, request.budget) == ("r", None)


def test_a_clock_that_is_ahead_makes_nothing_begin_in_the_future():
    said = GOOD | {"kairos-started-at": "99"}
    request = read_call(message(at=50, headers=said), now=10).request
    assert (request.arrived_at, request.workflow_started_at) == (10, 10)


@pytest.mark.parametrize(
    "value", [None, b"", b"{}", b"[]", b'{"messages":1}', b"\xff", b'{"messages":[],"stream":true}']
)
def test_a_call_without_messages_or_in_parts_is_refused(value):
    with pytest.raises(InvalidRequest):
        read_call(message(value), now=10)


def test_news_of_instances_can_be_read_for_that_it_is_refused_is_said_elsewhere():
    told = Told("p", InstanceJoined(build.instance("e")))
    assert msgspec.json.decode(as_sent(told), type=Told) == told
