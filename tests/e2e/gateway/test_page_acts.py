"""What the page may have done, and who may not: other sites' pages, and who only looks."""

import asyncio
import json

import msgspec
import pytest

from kairos.core import Arrived, PolicyChosen
from kairos.gateway.page.acts import Acts, CannotAct
from kairos.gateway.page.gains import GainsView
from kairos.request import ANONYMOUS, ROLE_RIGHTS, Caller
from kairos.settings import EngineSettings, Settings
from tests.e2e.served import NAMES
from tests.e2e.test_roles import basic, bearer, keys


def own(served, **changed):
    """The headers of the page's own requests."""
    host = served.service.admin_url.removeprefix("http://")
    said = {"origin": f"http://{host}", "content-type": "application/json"} | changed
    return {name: value for name, value in said.items() if value is not None}


async def told(served, path, headers, body=b"{}"):
    url = f"{served.service.admin_url}/ui/{path}"
    return await served._ask("POST", url, headers=headers, data=body)


@pytest.mark.parametrize(
    "changed",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": None},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site"},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
    ],
)
async def test_another_sites_page_can_have_nothing_done(kairos, standin, changed):
    served = await kairos(standin.url, key=keys("admin"))
    refused = await told(served, "ask/gained", own(served, **changed) | basic("admin"))
    assert (refused.status, refused.error()["code"]) == (403, "other_origin")


async def test_a_page_of_the_same_host_and_another_port_is_another(kairos, standin):
    served = await kairos(standin.url)
    refused = await told(served, "ask/gained", own(served, origin="http://127.0.0.1:1"))
    assert refused.status == 403


async def test_whoever_may_look_may_ask_what_it_gained(kairos, standin):
    served = await kairos(standin.url, key=keys("caller", "viewer", "admin"))
    for who, status in (("caller", 403), ("viewer", 200), ("admin", 200), ("unknown", 401)):
        assert (await told(served, "ask/gained", own(served) | basic(who))).status == status
        assert (await told(served, "ask/gained/stop", own(served) | bearer(who))).status == status
    assert (await told(served, "ask/gained", own(served))).status == 401


async def test_where_no_log_is_kept_nothing_is_worked_out(kairos, standin):
    served = await kairos(standin.url)
    answer = await told(served, "ask/gained", own(served))
    assert msgspec.json.decode(answer.body, type=GainsView).state == "no_log"


@pytest.fixture
def audited(tmp_path):
    """The lines of the audit log, and where it is."""
    path = tmp_path / "audit.jsonl"

    def lines():
        return [json.loads(line) for line in path.read_text().splitlines()]

    lines.path = str(path)
    return lines


async def done(served, what, said, who="admin"):
    return await told(served, f"act/{what}", own(served) | basic(who), json.dumps(said).encode())


ACTS = {
    "add": {"url": "http://127.0.0.1:9"},
    "drain": {"id": "127.0.0.1:9"},
    "cancel": {"tenant": "ops", "id": "w"},
    "reload": {},
}


@pytest.mark.parametrize("what", ACTS)
async def test_only_an_admin_may_act_and_only_from_the_page(kairos, standin, audited, what):
    served = await kairos(
        standin.url, key=keys("caller", "viewer", "admin"), audit_log=audited.path
    )
    for who, status in (("caller", 403), ("viewer", 403), ("unknown", 401)):
        assert (await done(served, what, ACTS[what], who)).status == status
    stranger = own(served, origin="http://evil.example") | basic("admin")
    refused = await told(served, f"act/{what}", stranger, json.dumps(ACTS[what]).encode())
    assert refused.error()["code"] == "other_origin"
    assert len(served.service.monitor.problems) == 0


@pytest.mark.parametrize("what", ACTS)
async def test_where_nobody_has_a_role_or_nothing_is_written_down_nothing_is_done(
    kairos, standin, audited, what
):
    body = json.dumps(ACTS[what]).encode()
    open_to_all = await kairos(standin.url, audit_log=audited.path)
    (await told(open_to_all, f"act/{what}", own(open_to_all), body)).is_refused(403, "cannot_act")
    unwritten = await kairos(standin.url, key=keys("admin"))
    refused = await done(unwritten, what, ACTS[what])
    assert "set audit_log" in refused.error()["message"]


async def test_engines_are_added_and_drained_and_each_act_is_in_the_audit_log(
    kairos, standin, audited
):
    served = await kairos(standin.url, key=keys("admin"), audit_log=audited.path)
    added = await done(served, "add", ACTS["add"])
    assert added.json()["id"] == "127.0.0.1:9"
    again = await done(served, "add", ACTS["add"])
    assert again.status == 409
    assert (await done(served, "drain", ACTS["drain"])).json()["state"] == "draining"
    assert (await done(served, "drain", {"id": "no:1"})).status == 404
    wrong = await done(served, "drain", {"url": "x"})
    assert wrong.status == 400
    acts = [(each["what"], each.get("target"), each["status"]) for each in audited()]
    assert acts == [
        ("POST /ui/act/add", "127.0.0.1:9", 200),
        ("POST /ui/act/add", "127.0.0.1:9", 409),
        ("POST /ui/act/drain", "127.0.0.1:9", 200),
        ("POST /ui/act/drain", "no:1", 404),
        ("POST /ui/act/drain", None, 400),
    ]
    assert {each["name"] for each in audited()} == {"admin"}


async def test_a_workflow_is_cancelled_as_its_client_could(kairos, engine, audited):
    served = await kairos(
        engine.url, key=keys("caller", "admin"), audit_log=audited.path, max_num_seqs=1
    )
    engine.answer = engine.when_released
    said = bearer("caller") | {"x-kairos-workflow-id": "run/1"}
    call = asyncio.create_task(served.chat(headers=said))
    await served.facts.seen(Arrived)
    assert (await done(served, "cancel", {"tenant": "ops", "id": "run/1"})).status == 200
    assert (await call).error()["code"] == "workflow_cancelled"
    ended = await done(served, "cancel", {"tenant": "ops", "id": "run/1"})
    assert "has ended already" in ended.error()["message"]
    for unknown in ({"tenant": "acme", "id": "run/1"}, {"tenant": "ops", "id": "<script>"}):
        assert (await done(served, "cancel", unknown)).status == 404
    assert audited()[0]["target"] == "ops run/1"


async def test_settings_are_read_again_and_what_came_of_it_is_told(kairos, standin, audited):
    served = await kairos(standin.url, key=keys("admin"), audit_log=audited.path)
    nothing = await done(served, "reload", {})
    assert "nothing to read again" in nothing.error()["message"]
    engine = (EngineSettings(url=standin.url),)
    given = {"engine": engine, "key": keys("admin"), "audit_log": audited.path, "admin_port": 0}
    given["allowed_hosts"] = NAMES
    served.service.reload.load = lambda: Settings(**given, port=0, max_body_bytes=5000, infer=False)
    read = (await done(served, "reload", {})).json()
    assert read == {"changed": ["max_body_bytes"], "needs_restart": ["infer"], "problem": None}


async def test_who_looks_is_told_what_may_be_done(kairos, standin, audited):
    served = await kairos(standin.url, key=keys("viewer", "admin"), audit_log=audited.path)
    url = served.service.admin_url + "/ui/data/me"
    admin = (await served._ask("GET", url, headers=basic("admin"))).json()
    assert (admin["name"], admin["may_act"], admin["why_not"]) == ("admin", True, None)
    viewer = (await served._ask("GET", url, headers=basic("viewer"))).json()
    assert (viewer["may_act"], viewer["why_not"]) == (
        False,
        "read-only: this needs a key of role admin",
    )


async def test_another_policy_is_in_force_once_the_settings_are_read_again(kairos, engine, audited):
    admins = keys("caller", "admin")
    served = await kairos(
        engine.url, key=admins, audit_log=audited.path, max_num_seqs=1, policy="fcfs"
    )
    engine.answer = engine.when_released
    calls = []
    for n, limit in enumerate([9, 400, 200, 10]):
        said = bearer("caller") | {"x-kairos-workflow-id": f"w{n}", "x-kairos-app": f"app-{n}"}
        calls.append(asyncio.create_task(served.chat(headers=said, max_tokens=limit)))
        await served.facts.seen(Arrived, n + 1)

    def order():
        return [each.request.workflow_id for each in served.balancer.queued(9)]

    assert order() == ["w1", "w2", "w3"]
    again = {
        "engine": (EngineSettings(url=engine.url, max_num_seqs=1),),
        "key": admins,
        "audit_log": audited.path,
        "port": 0,
        "admin_port": 0,
    }
    served.service.reload.load = lambda: Settings(**again, policy="kairos")
    assert (await done(served, "reload", {})).json()["changed"] == ["policy"]
    assert served.facts.all(PolicyChosen) == [PolicyChosen("kairos")]
    assert order() == ["w3", "w2", "w1"]
    engine.release(4)
    assert {(await call).status for call in calls} == {200}


@pytest.mark.parametrize(
    ("role", "audited", "changes", "may"),
    [
        ("admin", True, True, (True, True)),
        ("admin", True, False, (True, False)),
        ("admin", False, True, (False, False)),
        ("viewer", True, True, (False, False)),
        (None, True, True, (False, False)),
    ],
)
def test_only_an_admin_who_is_recorded_may_act_and_change_engines(role, audited, changes, may):
    caller = ANONYMOUS if role is None else Caller("ops", roles=ROLE_RIGHTS[role], name="ann")
    me = Acts(None, None, is_audited=audited, changes_engines=changes).me(caller)
    assert (me.may_act, me.may_change_engines) == may
    assert (me.why_not is None) is me.may_act


def test_of_a_pool_engines_are_changed_in_the_settings_alone():
    caller = Caller("ops", roles=ROLE_RIGHTS["admin"], name="ann")
    acts = Acts(None, None, is_audited=True, changes_engines=False)
    assert (acts.me(caller).may_act, acts.me(caller).may_change_engines) == (True, False)
    acts.check(caller)
    with pytest.raises(CannotAct, match="a pool's engines are defined"):
        acts.check(caller, engines=True)
