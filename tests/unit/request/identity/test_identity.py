"""Who makes a call, as its headers, its body, its URL and its key say."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import InvalidRequest
from kairos.request import Aliases, Caller, Identity, identity_of
from kairos.request.identity import aliases as aliases_module

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01".encode()
VALID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/+=-]{0,127}")
OURS = [b"x-kairos-workflow-id", b"x-kairos-app", b"x-kairos-agent", b"x-kairos-upstream"]
ACME = Caller("acme")


def identify(headers, told=None, route=None, caller=ACME, aliases=None):
    return identity_of(headers, told or {}, route or {}, caller, aliases or Aliases())


def said(headers, **options):
    """Without who said it."""
    identity = identify(headers, **options)
    identity.sources.clear()
    return identity


def test_a_request_that_says_nothing_has_no_identity():
    assert said({b"content-type": b"application/json"}) == Identity()


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

    assert said(headers) == Identity(
        workflow_id="user/42:a=b+c@d.e-f_g",
        app="qa",
        agent="Router",
        upstream="0",
        started_at=1_700_000_000_000_000,
        parent_ids=("req-1",),
        attempt=2,
    )


def test_each_field_comes_from_the_highest_that_says_it():
    headers = {
        b"x-kairos-agent": b"FromHeader",
        b"baggage": b"kairos.agent=FromBaggage,kairos.app=FromBaggage",
        b"traceparent": TRACEPARENT,
    }

    assert said(headers) == Identity(workflow_id=TRACE, app="FromBaggage", agent="FromHeader")


RUNGS = {  # highest first, and the headers by which each says who calls
    "declared": {b"x-kairos-workflow-id": b"declared", b"x-kairos-agent": b"declared"},
    "alias": {b"x-claude-code-session-id": b"alias", b"x-claude-code-agent-type": b"alias"},
    "route": {},
    "trace": {b"baggage": b"kairos.workflow_id=trace,kairos.agent=trace"},
}


@pytest.mark.parametrize("rungs", [list(RUNGS)[n:] for n in range(len(RUNGS))])
def test_the_highest_rung_counts_and_is_kept_as_the_source(rungs):
    headers = {name: value for rung in rungs for name, value in RUNGS[rung].items()}
    route = {"workflow_id": "route", "agent": "route"} if "route" in rungs else {}

    identity = identify(headers, route=route)

    assert (identity.workflow_id, identity.agent) == (rungs[0], rungs[0])
    assert identity.sources == {"workflow_id": rungs[0], "agent": rungs[0]}


def test_what_nobody_said_has_no_source():
    assert identify({b"x-kairos-app": b"qa"}).sources == {"app": "declared"}


def test_a_key_for_one_app_says_the_app_whatever_else_does():
    billing = Caller("acme", "billing")

    assert identify({}, caller=billing).sources == {"app": "route"}
    assert identify({}, caller=billing).app == "billing"
    declared = identify({b"x-kairos-app": b"qa"}, caller=billing)
    assert (declared.app, declared.sources) == ("billing", {"app": "route"})
    assert identify({}, caller=billing, route={"app": "sales"}).app == "billing"
    assert identify({b"baggage": b"kairos.app=qa"}, caller=billing).app == "billing"


SESSIONS = [
    (b"x-dynamo-session-id", b"x-dynamo-parent-session-id"),
    (b"thread-id", b"x-codex-parent-thread-id"),
    (b"x-session-id", b"x-parent-session-id"),
]


@pytest.mark.parametrize(("session", "parent"), SESSIONS)
def test_a_session_belongs_to_the_workflow_that_its_first_ancestor_began(session, parent):
    aliases = Aliases()
    headers = [
        {session: b"root"},
        {session: b"child", parent: b"root"},
        {session: b"grandchild", parent: b"child"},
        {session: b"grandchild"},
        {session: b"other"},
    ]

    found = [said(each, aliases=aliases).workflow_id for each in headers]

    assert found == ["root", "root", "root", "root", "other"]


def test_of_the_sessions_that_are_remembered_the_one_not_heard_of_for_longest_goes(monkeypatch):
    monkeypatch.setattr(aliases_module, "_MAX_SESSIONS", 2)
    aliases = Aliases()
    for child in (b"x", b"y", b"x", b"z"):
        said({b"x-session-id": child, b"x-parent-session-id": b"root"}, aliases=aliases)

    assert said({b"x-session-id": b"x"}, aliases=aliases).workflow_id == "root"
    assert said({b"x-session-id": b"y"}, aliases=aliases).workflow_id == "y"


def test_subagents_of_a_coding_agent_share_its_session_and_have_a_type():
    main = {b"x-claude-code-session-id": b"s-1"}
    explorer = {b"x-claude-code-agent-id": b"a91", b"x-claude-code-agent-type": b"Explore"}

    assert said(main) == Identity(workflow_id="s-1")
    assert said(main | explorer) == Identity(workflow_id="s-1", agent="Explore")


@pytest.mark.parametrize(("final", "ends"), [(b"true", True), (b"True ", True), (b"false", False)])
def test_the_last_request_of_a_first_session_ends_its_workflow(final, ends):
    last = {b"x-dynamo-session-final": final}

    assert said({b"x-dynamo-session-id": b"a"} | last).ends_workflow == ends
    child = {b"x-dynamo-session-id": b"b", b"x-dynamo-parent-session-id": b"a"}
    assert not said(child | last).ends_workflow
    assert not said(last).ends_workflow
    declared = {b"x-kairos-workflow-id": b"w", b"x-dynamo-session-id": b"a"}
    assert not said(declared | last).ends_workflow


def test_an_alias_that_is_no_identifier_is_ignored():
    assert said({b"x-session-id": b"two words", b"thread-id": b""}) == Identity()


BODY = {"user": b'"u 1"', "prompt_cache_key": b'"c-1"', "metadata": b'{"run": {"id": 7}, "x": []}'}
TOLD = {name: msgspec.Raw(value) for name, value in BODY.items()}


@pytest.mark.parametrize(
    ("path", "workflow_id"),
    [
        ("prompt_cache_key", "c-1"),
        ("metadata.run.id", "7"),
        ("metadata.run", None),
        ("metadata.x.id", None),
        ("metadata.none", None),
        ("user", None),
    ],
)
def test_the_body_says_who_calls_where_the_settings_name_a_field(path, workflow_id):
    identity = identify({}, told=TOLD, aliases=Aliases({"workflow_id": path}))

    assert identity.workflow_id == workflow_id
    assert identity.sources == ({} if workflow_id is None else {"workflow_id": "alias"})


@pytest.mark.parametrize("value", [b"{", b"\xff", b"[" * 100_000, b'{"run": {"run": 1}}', b"null"])
def test_a_body_field_that_is_something_else_is_ignored(value):
    told = {"metadata": msgspec.Raw(value)}

    assert said({}, told=told, aliases=Aliases({"agent": "metadata.run"})) == Identity()


def test_without_settings_no_body_field_says_who_calls():
    assert said({}, told=TOLD) == Identity()


def test_a_baggage_member_cut_short_by_the_limit_is_no_name():
    first = b"kairos.app=qa,x="
    last = b",kairos.agent=Router"
    longer = first + b"y" * (8193 - len(first) - len(last)) + last

    assert len(longer) == 8193
    assert said({b"baggage": longer}) == Identity(app="qa")


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"now", b"1" * 19, "\u0661".encode(), b" 1"])
def test_a_start_that_is_no_instant_is_refused_by_name(value):
    with pytest.raises(InvalidRequest, match=r"^header x-kairos-started-at must be whole micro"):
        said({b"x-kairos-started-at": value})


def test_the_longest_instant_is_read():
    assert said({b"x-kairos-started-at": b"9" * 18}).started_at == 10**18 - 1


def test_at_most_32_parents_are_named():
    ids = [f"p{n}" for n in range(33)]

    assert said({PARENT: ",".join(ids[:32]).encode()}).parent_ids == tuple(ids[:32])
    with pytest.raises(InvalidRequest, match=r"x-kairos-parent-id names more than 32 requests"):
        said({PARENT: ",".join(ids).encode()})


@pytest.mark.parametrize("value", [b"", b"a,", b",a", b"a,,b", b"two words", b"a;b", b"a" * 129])
def test_parents_that_are_no_identifiers_are_refused_by_name(value):
    with pytest.raises(InvalidRequest, match="x-kairos-parent-id is not a valid id"):
        said({PARENT: value})


@pytest.mark.parametrize(("value", "attempt"), [(b"1", 1), (b"999", 999), (b"007", 7)])
def test_an_attempt_is_a_number_from_1_to_999(value, attempt):
    assert said({b"x-kairos-attempt": value}).attempt == attempt


@pytest.mark.parametrize(
    "value", [b"", b"0", b"1000", b"-1", b"1.0", b"one", b" 1", b"1" * 5000, "\u0661".encode()]
)
def test_an_attempt_that_is_none_is_refused_by_name(value):
    with pytest.raises(InvalidRequest, match=r"^header x-kairos-attempt must be a number from 1"):
        said({b"x-kairos-attempt": value})


START, PARENT = b"x-kairos-started-at", b"x-kairos-parent-id"
header_values = st.binary(max_size=140) | st.sampled_from([VALID.pattern, r"\d+"]).flatmap(
    lambda pattern: st.from_regex(pattern, fullmatch=True).map(str.encode)
)


@given(st.dictionaries(st.sampled_from([*OURS, START]), header_values))
def test_any_bytes_in_our_headers_give_what_they_say_or_are_refused(headers):
    texts = {name: value.decode("latin-1") for name, value in headers.items()}
    started_at = texts.pop(START, None)
    names = all(VALID.fullmatch(text) for text in texts.values())

    if names and (started_at is None or re.fullmatch(r"[0-9]{1,18}", started_at)):
        fields = [texts.get(name) for name in OURS]
        assert said(headers) == Identity(*fields, started_at and int(started_at))
    else:
        with pytest.raises(InvalidRequest, match=r"^header x-kairos-"):
            said(headers)


members = st.tuples(
    st.sampled_from([b"kairos.agent", b"kairos.workflow_id", b"gen_ai.agent.name", b"other", b""]),
    st.sampled_from([b"=", b" = ", b"", b";", b"=="]),
    st.binary(max_size=20) | st.sampled_from([b"Router", b"%", b"%zz", b"%ff", b"%e2%82%ac"]),
).map(b"".join)


@given(st.binary(max_size=9000) | st.lists(members).map(b",".join), st.binary(max_size=60))
def test_tracing_headers_of_any_bytes_give_identifiers_or_nothing(baggage, traceparent):
    identity = said({b"baggage": baggage, b"traceparent": traceparent})

    texts = [identity.workflow_id, identity.app, identity.agent, identity.upstream]
    assert all(text is None or VALID.fullmatch(text) for text in texts)


def test_a_sub_agents_first_call_comes_from_the_agent_that_started_it():
    aliases, session = Aliases(), b"x-claude-code-session-id"

    def call(agent, run=None, parent=None, upstream=None, tenant="acme", of=b"s-1"):
        headers = {session: of}
        if run is not None:
            headers[b"x-claude-code-agent-id"] = run
        if parent is not None:
            headers[b"x-claude-code-parent-agent-id"] = parent
        identity = Identity(agent=agent, upstream=upstream)
        aliases.add_caller(identity, headers, tenant)
        return identity.upstream

    assert call("main") is None
    assert call("explorer", b"a1") == "main"
    assert call("explorer", b"a1") is None  # its later calls follow from its own
    assert call("reader", b"a2", b"a1") == "explorer"
    assert call("reader", b"a3", b"unknown") is None
    assert call("reader", b"a4", b"a1", upstream="seen") == "seen"
    assert call("explorer", b"a1", tenant="another") is None
    assert call("explorer", b"a1", of=b"s-2") is None
    assert call(None, b"a5") is None
