"""Who makes a call, as the headers say."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.errors import InvalidRequest
from kairos.live.identity import Identity, identifier, read_identity

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01".encode()
VALID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/+=-]{0,127}")
OURS = [b"x-kairos-workflow-id", b"x-kairos-app", b"x-kairos-agent", b"x-kairos-upstream"]


def test_a_request_that_says_nothing_has_no_identity():
    assert read_identity({b"content-type": b"application/json"}) == Identity()


def test_our_headers_say_everything():
    headers = {
        b"x-kairos-workflow-id": b"user/42:a=b+c@d.e-f_g",
        b"x-kairos-app": b"qa",
        b"x-kairos-agent": b"Router",
        b"x-kairos-upstream": b"0",
        b"x-kairos-started-at": b"1700000000000000",
        b"x-kairos-parent-id": b"req-1",
        b"x-kairos-attempt": b"2",
    }

    assert read_identity(headers) == Identity(
        workflow_id="user/42:a=b+c@d.e-f_g",
        app="qa",
        agent="Router",
        upstream="0",
        started_at=1_700_000_000_000_000,
        parent_ids=("req-1",),
        attempt=2,
    )


def test_baggage_says_it_too_with_spaces_properties_and_percent_signs():
    baggage = (
        b"userId=alice, kairos.workflow_id = w%2F1 ;ttl=3,kairos.app=qa;a;b=c,"
        b"kairos.agent=Router,kairos.upstream=Plan%6Eer"
    )

    assert read_identity({b"baggage": baggage}) == Identity(
        workflow_id="w/1", app="qa", agent="Router", upstream="Planner"
    )


def test_the_genai_conventions_name_agent_and_conversation():
    baggage = b"gen_ai.agent.name=Router,gen_ai.conversation.id=c1"

    assert read_identity({b"baggage": baggage}) == Identity(workflow_id="c1", agent="Router")


@pytest.mark.parametrize(
    "baggage",
    [
        b"kairos.agent=Ours,gen_ai.agent.name=Theirs",
        b"gen_ai.agent.name=Theirs,kairos.agent=Ours",
        b"kairos.agent=Ours,kairos.agent=Later",
    ],
)
def test_in_baggage_our_own_name_wins_wherever_it_stands_and_the_first_of_two(baggage):
    assert read_identity({b"baggage": baggage}).agent == "Ours"


def test_each_field_comes_from_the_highest_that_says_it():
    headers = {
        b"x-kairos-agent": b"FromHeader",
        b"baggage": b"kairos.agent=FromBaggage,kairos.app=FromBaggage",
        b"traceparent": TRACEPARENT,
    }

    assert read_identity(headers) == Identity(
        workflow_id=TRACE, app="FromBaggage", agent="FromHeader"
    )


def test_a_workflow_named_in_baggage_wins_over_the_trace():
    headers = {b"baggage": b"gen_ai.conversation.id=c1", b"traceparent": TRACEPARENT}

    assert read_identity(headers).workflow_id == "c1"


@pytest.mark.parametrize(
    "traceparent",
    [
        TRACEPARENT.upper(),
        b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01",
        f"00-{TRACE}-{'0' * 16}-01".encode(),
        b"ff" + TRACEPARENT[2:],
        TRACEPARENT[1:],
        TRACEPARENT[:-1],
        b" " + TRACEPARENT,
        b"",
        b"\xff" * 55,
    ],
)
def test_a_traceparent_that_is_none_is_ignored(traceparent):
    assert read_identity({b"traceparent": traceparent}) == Identity()


def test_baggage_values_that_are_no_identifiers_are_ignored():
    baggage = b"kairos.agent=two words,kairos.app=,kairos.upstream,kairos.workflow_id=%00,=,;,,"

    assert read_identity({b"baggage": baggage}) == Identity()


def test_a_valid_baggage_value_counts_although_an_invalid_one_came_first():
    baggage = b"kairos.agent=two words,kairos.agent=Router"

    assert read_identity({b"baggage": baggage}).agent == "Router"


def test_baggage_is_read_up_to_8192_bytes():
    first, last = b"kairos.app=qa", b"kairos.agent=Router"
    filler = b"x=" + b"y" * (8192 - len(first) - len(last) - 4)

    whole = first + b"," + filler + b"," + last

    assert len(whole) == 8192
    assert read_identity({b"baggage": whole}) == Identity(app="qa", agent="Router")


def test_a_baggage_member_cut_short_by_the_limit_is_no_name():
    first = b"kairos.app=qa,x="
    last = b",kairos.agent=Router"
    longer = first + b"y" * (8193 - len(first) - len(last)) + last

    assert len(longer) == 8193
    assert read_identity({b"baggage": longer}) == Identity(app="qa")


@pytest.mark.parametrize("header", OURS)
@pytest.mark.parametrize(
    "value", [b"", b"two words", b"-dash", b"a" * 129, b"caf\xc3\xa9", b"a\n", b"a\0", b"a,b"]
)
def test_a_header_of_ours_that_is_no_identifier_is_refused_by_name(header, value):
    with pytest.raises(InvalidRequest, match=rf"^header {header.decode()} is no valid identifier"):
        read_identity({header: value})


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"now", b"1" * 19, "\u0661".encode(), b" 1"])
def test_a_start_that_is_no_instant_is_refused_by_name(value):
    with pytest.raises(InvalidRequest, match=r"^header x-kairos-started-at must be whole micro"):
        read_identity({b"x-kairos-started-at": value})


def test_the_longest_instant_is_read():
    assert read_identity({b"x-kairos-started-at": b"9" * 18}).started_at == 10**18 - 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (b"", None),
        (b"a" * 128, "a" * 128),
        (b"a" * 129, None),
        (b"_x", "_x"),
        (b".x", None),
        (b"a\n", None),
    ],
)
def test_an_identifier_is_1_to_128_plain_characters(value, text):
    assert identifier(value) == text


def test_a_call_that_joins_several_names_each_of_them_once():
    headers = {b"x-kairos-parent-id": b"a-1, b-1,\tc-1,b-1"}

    assert read_identity(headers).parent_ids == ("a-1", "b-1", "c-1")


def test_at_most_32_parents_are_named():
    ids = [f"p{n}" for n in range(33)]

    assert read_identity({PARENT: ",".join(ids[:32]).encode()}).parent_ids == tuple(ids[:32])
    with pytest.raises(InvalidRequest, match=r"^header x-kairos-parent-id names over 32 requests"):
        read_identity({PARENT: ",".join(ids).encode()})


@pytest.mark.parametrize("value", [b"", b"a,", b",a", b"a,,b", b"two words", b"a;b", b"a" * 129])
def test_parents_that_are_no_identifiers_are_refused_by_name(value):
    with pytest.raises(InvalidRequest, match=r"^header x-kairos-parent-id is no valid identifier"):
        read_identity({PARENT: value})


@pytest.mark.parametrize(("value", "attempt"), [(b"1", 1), (b"999", 999), (b"007", 7)])
def test_an_attempt_is_a_number_from_1_to_999(value, attempt):
    assert read_identity({b"x-kairos-attempt": value}).attempt == attempt


@pytest.mark.parametrize(
    "value", [b"", b"0", b"1000", b"-1", b"1.0", b"one", b" 1", b"1" * 5000, "\u0661".encode()]
)
def test_an_attempt_that_is_none_is_refused_by_name(value):
    with pytest.raises(InvalidRequest, match=r"^header x-kairos-attempt must be a number from 1"):
        read_identity({b"x-kairos-attempt": value})


START, PARENT = b"x-kairos-started-at", b"x-kairos-parent-id"
header_values = st.binary(max_size=140) | st.sampled_from([VALID.pattern, r"\d+"]).flatmap(
    lambda pattern: st.from_regex(pattern, fullmatch=True).map(str.encode)
)


@given(st.dictionaries(st.sampled_from([*OURS, START]), header_values))
def test_any_bytes_in_our_headers_give_what_they_say_or_are_refused(headers):
    said = {name: value.decode("latin-1") for name, value in headers.items()}
    started_at = said.pop(START, None)
    names = all(VALID.fullmatch(text) for text in said.values())

    if names and (started_at is None or re.fullmatch(r"[0-9]{1,18}", started_at)):
        fields = [said.get(name) for name in OURS]
        assert read_identity(headers) == Identity(*fields, started_at and int(started_at))
    else:
        with pytest.raises(InvalidRequest, match=r"^header x-kairos-"):
            read_identity(headers)


members = st.tuples(
    st.sampled_from([b"kairos.agent", b"kairos.workflow_id", b"gen_ai.agent.name", b"other", b""]),
    st.sampled_from([b"=", b" = ", b"", b";", b"=="]),
    st.binary(max_size=20) | st.sampled_from([b"Router", b"%", b"%zz", b"%ff", b"%e2%82%ac"]),
).map(b"".join)


@given(st.binary(max_size=9000) | st.lists(members).map(b",".join), st.binary(max_size=60))
def test_tracing_headers_of_any_bytes_give_identifiers_or_nothing(baggage, traceparent):
    identity = read_identity({b"baggage": baggage, b"traceparent": traceparent})

    texts = [identity.workflow_id, identity.app, identity.agent, identity.upstream]
    assert all(text is None or VALID.fullmatch(text) for text in texts)
