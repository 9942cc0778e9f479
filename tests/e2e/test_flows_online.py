"""Flows that are put over HTTP and invoked for a row, over real sockets."""

import asyncio
import json

import pytest

from kairos.core import Arrived, Cancelled, Finished, WorkflowEnded
from tests.e2e.batch_files import key
from tests.e2e.flows import MANY, REPORTS, answers, invoke, kept_in, prompts, put
from tests.support.flow_tables import WIDE


@pytest.fixture
async def served(kairos, engine, tmp_path):
    answers(engine)
    return await kairos(engine.url, flows=kept_in(tmp_path / "flows"))


async def test_a_flow_is_put_and_invoked(served, engine):
    kept = (await put(served)).json()
    answer = await invoke(served, {"doc": "unused", "text": "Kairos"})

    assert kept["id"] == "reports"
    assert kept["model"] == "flow/reports"
    assert (kept["inputs"], kept["outputs"]) == (["text"], ["verdict", "summary"])
    assert answer.status == 200, answer.body
    told = answer.json()
    summary = "<Summarise: Kairos>"
    assert told["outputs"] == {"summary": summary, "verdict": f"<Judge: {summary}>"}
    assert told["object"] == "flow.invocation"
    assert told["flow"] == "reports"
    assert told["usage"] == {
        "calls": 2,
        "prompt_tokens": 20,
        "completion_tokens": 6,
        "total_tokens": 26,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert prompts(engine) == ["Summarise: Kairos", f"Judge: {summary}"]


async def test_its_calls_are_one_workflow_of_the_tenant_which_ends_with_it(served):
    await put(served)
    told = (await invoke(served, {"text": "x"})).json()

    requests = [fact.request for fact in served.facts.all(Arrived)]
    assert {request.workflow_id for request in requests} == {told["id"]}
    assert [request.agent for request in requests] == ["summary", "verdict"]
    assert {request.app for request in requests} == {"reports"}
    [ended] = served.facts.all(WorkflowEnded)
    assert (ended.tenant, ended.workflow_id) == ("default", told["id"])


async def test_what_an_invocation_says_of_itself_its_calls_say_too(served):
    await put(served)
    headers = {
        "X-Kairos-Workflow-Id": "ticket-7",
        "X-Kairos-App": "desk",
        "X-Kairos-Class": "interactive",
        "X-Kairos-Deadline-Ms": "60000",
        "X-Kairos-Budget-Calls": "9",
    }
    assert (await invoke(served, {"text": "x"}, headers=headers)).status == 200

    for request in (fact.request for fact in served.facts.all(Arrived)):
        assert (request.workflow_id, request.app) == ("ticket-7", "desk")
        assert request.service_class == "interactive"
        assert request.deadline_at is not None
        assert request.budget.calls == 9
    assert not served.facts.all(WorkflowEnded)  # its client may go on with it


async def test_flows_are_listed_shown_replaced_and_deleted(served):
    await put(served)
    text = REPORTS.replace("reports", "second")
    await put(served, text, "second")
    listed = (await served.ask("GET", "/v1/flows")).json()
    assert [flow["id"] for flow in listed["data"]] == ["reports", "second"]
    assert "source" not in listed["data"][0]
    shown = (await served.ask("GET", "/v1/flows/second")).json()
    assert shown["source"] == text

    await put(served, REPORTS.replace("Judge", "Weigh"))
    told = (await invoke(served, {"text": "x"})).json()
    assert told["outputs"]["verdict"].startswith("<Weigh: ")

    gone = await served.ask("DELETE", "/v1/flows/second")
    assert gone.json() == {"id": "second", "object": "flow", "deleted": True}
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/invoke")):
        answer = await served.ask(method, f"/v1/flows/second{path}", json={})
        assert answer.status == 404
        assert answer.error()["code"] == "flow_not_found"
        assert "PUT /v1/flows/second" in answer.error()["message"]


async def test_a_flow_may_be_json(served):
    flow = {
        "flow": "greet",
        "operators": {
            "row": {"kind": "input"},
            "hello": {"kind": "llm", "prompt": "Greet {{ row.name }} \U0001f600"},
        },
        "outputs": {"hello": "hello"},
    }
    put_ = await served.ask("PUT", "/v1/flows/greet", json=flow)
    assert put_.status == 200, put_.body
    told = (await invoke(served, {"name": "Ann"}, "greet")).json()
    assert told["outputs"] == {"hello": "<Greet Ann \U0001f600>"}


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("flow: [", "reports:"),
        ("", "it is empty"),
        ("flow: reports\noperators: {x: {kind: nonsense}}\noutputs: {x: x}", "no kind 'nonsense'"),
        (REPORTS.replace("{{ summary }}", "{{ sumary }}"), "sumary"),
        (REPORTS.replace("flow: reports", "flow: others"), "calls itself 'others'"),
        (REPORTS.replace("max_tokens: 5", "max_tokens: 0"), "max_tokens"),
        ("a: &a [x]\nb: [" + "*a," * 70_000 + "]", "over"),
        ("[" * 500, "nested"),
        ("x" * 300_000, "larger than"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
async def test_a_flow_that_cannot_be_run_is_refused_with_what_is_wrong(served, source, says):
    answer = await put(served, source)

    assert answer.status in (400, 413)
    assert says in answer.error()["message"]
    assert (await served.ask("GET", "/v1/flows")).json()["data"] == []


async def test_json_that_is_no_flow_is_refused(served):
    for body in (b"{", b"[]", b'"x"', b"[" * 100_000):
        headers = {"content-type": "application/json"}
        answer = await served.ask("PUT", "/v1/flows/x", data=body, headers=headers)
        assert answer.status == 400
        assert answer.error()["code"] == "invalid_flow"


async def test_a_flow_carries_no_code_and_calls_registered_functions_alone(
    kairos, engine, tmp_path
):
    (tmp_path / "functions.py").write_text(
        "from kairos.flow import Functions\n"
        "functions = Functions()\n"
        "@functions.pure\n"
        "def shout(text):\n"
        "    return text.upper()\n"
    )
    flow = """
flow: loud
operators:
  row: {kind: input}
  loud: {kind: call, function: shout, purity: pure, inputs: {text: row.text}}
outputs: {loud: loud}
"""
    served = await kairos(
        engine.url, flows=kept_in(tmp_path / "flows", functions=str(tmp_path / "functions.py"))
    )
    refused = await put(served, flow.replace("shout", "os_system"), "loud")
    assert refused.status == 400
    assert "no function 'os_system' is registered; there are: shout" in refused.error()["message"]

    assert (await put(served, flow, "loud")).status == 200
    told = (await invoke(served, {"text": "hush"}, "loud")).json()
    assert told["outputs"] == {"loud": "HUSH"}


async def test_a_column_that_is_missing_is_named(served):
    await put(served)
    answer = await invoke(served, {"txt": "x"})
    assert answer.status == 400
    assert answer.error()["message"] == "the flow needs the column 'text'; inputs has 'txt'"
    assert answer.error()["param"] == "inputs"


async def test_a_body_that_is_no_invocation_is_refused(served):
    await put(served)
    for body in (b"", b"[]", b'{"inputs": 3}', b'{"input": {}}', b"{" * 5000):
        answer = await served.ask("POST", "/v1/flows/reports/invoke", data=body)
        assert answer.status == 400, body[:20]


async def test_a11_settings_of_one_query_change_its_operators_alone(served, engine):
    await put(served)
    settings = {"summary.max_tokens": 50, "verdict.temperature": 0.5}
    assert (await invoke(served, {"text": "x"}, settings=settings)).status == 200
    assert (await invoke(served, {"text": "x"})).status == 200

    asked = [json.loads(call.body) for call in engine.calls]
    assert [body["max_tokens"] for body in asked] == [50, 5, 20, 5]
    assert [body["temperature"] for body in asked] == [0.0, 0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"nobody.max_tokens": 3}, "of no operator"),
        ({"max_tokens": 3}, "OPERATOR.PARAMETER"),
        ({"summary.prompt": "x"}, "does not list 'summary.prompt' as settable"),
        ({"summary.messages": []}, "can be set, not 'messages'"),
        ({"doc.columns": []}, "of kind input: nothing can be set"),
        ({"summary.max_tokens": "many"}, "max_tokens"),
        ({"summary.max_tokens": 0}, "may be 1 to"),
        ({f"summary.x{n}": n for n in range(100)}, "64 at most"),
    ],
)
async def test_a11_settings_that_no_operator_has_are_refused(served, settings, says):
    await put(served)
    answer = await invoke(served, {"text": "x"}, settings=settings)

    assert (answer.status, answer.error()["code"]) == (400, "invalid_flow")
    assert says in answer.error()["message"]
    assert answer.error()["param"] == "settings"


MODES = """
flow: modes
operators:
  row: {kind: input}
  mode: {kind: data, value: one}
  one: {kind: llm, prompt: "Answer {{ row.q }} from {{ row.a }} and {{ row.b }}"}
  first: {kind: llm, prompt: "Answer {{ row.q }} from {{ row.a }}"}
  refined: {kind: llm, prompt: "Refine {{ first }} by {{ row.b }}"}
  second: {kind: llm, prompt: "Answer {{ row.q }} from {{ row.b }}"}
  joined: {kind: llm, prompt: "Join {{ first }} and {{ second }}"}
  answer: {kind: branch, on: mode, cases: {one: one, refine: refined, tree: joined}}
outputs: {answer: answer}
settable: [mode.value, one.prompt, one.system, refined.prompt]
"""
ROW = {"q": "why", "a": "A", "b": "B"}
TREE = [
    "Answer why from A",
    "Answer why from B",
    "Join <Answer why from A> and <Answer why from B>",
]


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({}, ["Answer why from A and B"]),
        ({"mode.value": "refine"}, ["Answer why from A", "Refine <Answer why from A> by B"]),
        ({"mode.value": "tree"}, TREE),
        ({"one.prompt": "{{ row.q }}? {{ row.b }}"}, ["why? B"]),
        ({"one.prompt": "no names"}, ["no names"]),
        ({"mode.value": "refine", "refined.prompt": "{{ row.q }} {{ first }}"},
         ["Answer why from A", "why <Answer why from A>"]),
        ({"mode.value": "refine", "refined.prompt": "{{ mode }} {{ row.a }}"}, ["refine A"]),
        ({"one.system": "Be {{ row.q }}", "one.max_tokens": 9}, ["Answer why from A and B"]),
    ],
)  # fmt: skip
async def test_a_query_chooses_how_an_answer_is_put_together_and_asked_for(
    kairos, engine, tmp_path, settings, asked
):
    answers(engine)
    served = await kairos(engine.url, flows=kept_in(tmp_path / "flows", without=("prefill",)))
    await put(served, MODES, "modes")
    for given in (settings, {}, settings):  # whatever plans are kept
        answer = await invoke(served, ROW, "modes", settings=given)
        assert answer.status == 200, answer.body
    found = prompts(engine)
    assert found[: len(asked)] in (asked, [asked[1], asked[0], *asked[2:]] if len(asked) > 1 else 0)
    bodies = [json.loads(call.body)["messages"] for call in engine.calls]
    assert (bodies[0][0] == {"role": "system", "content": "Be why"}) == ("one.system" in settings)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"refined.system": "x"}, "does not list 'refined.system'"),
        ({"joined.prompt": "x"}, "does not list 'joined.prompt'"),
        ({"row.value": "x"}, "of kind input: nothing can be set"),
        ({"mode.kind": "x"}, "can be set, not 'kind'"),
        ({"one.prompt": 7}, "a text"),
        ({"one.prompt": "{{ nobody }}"}, "nobody"),
        ({"one.prompt": "{{ answer }}"}, "answer"),  # it would need itself
        ({"one.prompt": "{% broken"}, "one"),
        ({"one.prompt": "{{ row.q | nothing }}"}, "one"),
        ({"mode.value": "x" * (1 << 17)}, "settings has"),
    ],
)
async def test_templates_of_a_query_are_checked_as_those_of_a_flow(served, settings, says):
    await put(served, MODES, "modes")
    answer = await invoke(served, ROW, "modes", settings=settings)
    assert answer.status == 400, answer.body
    assert says in answer.error()["message"]


@pytest.mark.parametrize("listed", ["mode.kind", "row.value", "one.max_tokens", "nobody.prompt"])
async def test_what_cannot_be_listed_as_settable_is_refused(served, listed):
    answer = await put(served, MODES.replace("one.system", listed), "modes")
    assert answer.status == 400
    assert "cannot be listed as settable" in answer.error()["message"]


OWN_PASS = """
import msgspec
from kairos.flow import Functions

functions = Functions()

@functions.rewrites
def shorter(declaration):
    def of(operator):
        if operator.kind != "llm":
            return operator
        params = msgspec.structs.replace(operator.params, max_tokens=3)
        return msgspec.structs.replace(operator, params=params)
    return msgspec.structs.replace(declaration, operators=tuple(map(of, declaration.operators)))
"""


async def test_passes_of_an_operators_own_rewrite_flows_that_are_served(kairos, engine, tmp_path):
    (tmp_path / "functions.py").write_text(OWN_PASS)
    answers(engine)
    flows = kept_in(tmp_path / "flows", functions=str(tmp_path / "functions.py"))
    served = await kairos(engine.url, flows=flows)
    await put(served)
    assert (await invoke(served, {"text": "x"}, settings={"verdict.max_tokens": 9})).status == 200
    asked = [json.loads(call.body) for call in engine.calls]
    assert [body["max_tokens"] for body in asked] == [3, 9]


async def test_another_tenants_flow_is_not_there(kairos, engine, tmp_path):
    answers(engine)
    served = await kairos(
        engine.url, flows=kept_in(tmp_path / "flows"), key=(key("acme"), key("bolt"))
    )
    acme, bolt = ({"authorization": f"Bearer {name}"} for name in ("acme", "bolt"))
    assert (await put(served, headers=acme)).status == 200

    assert (await invoke(served, {"text": "x"})).status == 401
    assert (await invoke(served, {"text": "x"}, headers=bolt)).status == 404
    assert (await served.ask("GET", "/v1/flows", headers=bolt)).json()["data"] == []
    assert (await served.ask("GET", "/v1/flows/reports", headers=bolt)).status == 404
    assert (await served.ask("DELETE", "/v1/flows/reports", headers=bolt)).status == 404
    assert (await invoke(served, {"text": "x"}, headers=acme)).status == 200
    assert {fact.request.tenant for fact in served.facts.all(Arrived)} == {"acme"}


async def test_a_tenant_keeps_so_many_flows_and_no_more(kairos, engine, tmp_path):
    served = await kairos(engine.url, flows=kept_in(tmp_path / "flows", max_flows=2))
    for name in ("a", "b"):
        assert (await put(served, REPORTS.replace("reports", name), name)).status == 200
    (await put(served, REPORTS.replace("reports", "c"), "c")).is_refused(429, "flow_limit")
    assert (await put(served, REPORTS.replace("reports", "b"), "b")).status == 200


async def test_where_no_directory_is_named_there_are_no_flows(kairos, engine):
    served = await kairos(engine.url)
    for method, path in (("PUT", "/x"), ("GET", ""), ("POST", "/x/invoke"), ("DELETE", "/x")):
        answer = await served.ask(method, f"/v1/flows{path}")
        assert (answer.status, answer.error()["code"]) == (404, "flows_off")
        assert "directory of [flows]" in answer.error()["message"]
    assert engine.calls == []


async def test_a_client_that_leaves_ends_the_calls_of_its_flow(served, engine):
    await put(served)
    engine.answer = engine.when_released
    wire = await served.post_raw("/v1/flows/reports/invoke", {"inputs": {"text": "x"}})
    await engine.called()
    await wire.close()

    await served.facts.seen(Cancelled)
    await engine.until(lambda: engine.lost == 1)
    assert len(engine.calls) == 1
    await served.facts.seen(WorkflowEnded)


async def test_a_deadline_ends_the_flow_and_the_calls_it_has_under_way(served, engine):
    await put(served)
    engine.answer = engine.when_released
    answer = await invoke(served, {"text": "x"}, headers={"X-Kairos-Deadline-Ms": "200"})

    assert (answer.status, answer.error()["code"]) == (504, "deadline_exceeded")
    await engine.until(lambda: engine.lost == 1)
    wrong = await invoke(served, {"text": "x"}, headers={"X-Kairos-Deadline-Ms": "soon"})
    assert wrong.status == 400


async def test_what_a_call_was_refused_with_is_what_the_invocation_is_answered(served):
    await put(served)
    spent = await invoke(served, {"text": "x"}, headers={"X-Kairos-Budget-Calls": "1"})
    spent.is_refused(403, "budget_calls")
    assert spent.error()["message"].startswith("operator 'verdict': ")

    unknown = await invoke(served, {"text": "x"}, settings={"summary.model": "nobody"})
    unknown.is_refused(404, "model_not_found")


async def test_an_operator_that_has_no_value_fails_the_flow_with_its_name(served, engine):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    text = REPORTS.replace("max_tokens: 5", f"schema: {json.dumps(schema)}")
    await put(served, text)
    answer = await invoke(served, {"text": "x"})
    assert (answer.status, answer.error()["code"]) == (422, "flow_failed")
    assert answer.error()["message"].startswith("operator 'verdict': the answer is not JSON")


ALONE = {
    "a row that is filtered away has no outputs": (
        """
flow: alone
operators:
  row: {kind: input}
  long: {kind: filter, of: row.text, where: "row.text | length > 3"}
outputs: {long: long}
""",
        [({"text": "hello"}, {"long": "hello"}), ({"text": "hi"}, None)],
    ),
    "a flow with a group has the row as its only one": (
        """
flow: alone
operators:
  row: {kind: input}
  by: {kind: group, by: "row.topic", value: row.text}
  all: {kind: format, template: "{{ by.key }}: {{ by['items'] | join(', ') }}"}
outputs: {all: all}
""",
        [({"topic": "a", "text": "b"}, {"all": "a: b"})],
    ),
}


@pytest.mark.parametrize("what", ALONE)
async def test_a_row_goes_through_alone(served, what):
    flow, rows = ALONE[what]
    assert (await put(served, flow, "alone")).status == 200
    for inputs, outputs in rows:
        assert (await invoke(served, inputs, "alone")).json()["outputs"] == outputs


async def test_a_map_calls_side_by_side_and_equal_prompts_once(served, engine):
    assert (await put(served, MANY, "many")).status == 200
    told = (await invoke(served, {"items": ["a", "b", "a"]}, "many")).json()
    assert told["outputs"] == {"each": ["<Say a>", "<Say b>", "<Say a>"]}
    assert sorted(prompts(engine)) == ["Say a", "Say b"]


async def test_a_tenant_has_so_many_invocations_under_way(kairos, engine, tmp_path):
    served = await kairos(engine.url, flows=kept_in(tmp_path / "flows", max_running=1))
    await put(served)

    async def held(request):
        await engine.turns.acquire()
        return await answers(engine).answer(request)

    engine.answer = held
    first = asyncio.create_task(invoke(served, {"text": "x"}))
    await engine.called()
    busy = await invoke(served, {"text": "x"})
    assert (busy.status, busy.error()["code"]) == (429, "flows_busy")
    assert busy.headers["retry-after"] == "1"
    engine.release(9)
    assert (await first).status == 200
    assert (await invoke(served, {"text": "y"})).status == 200
    assert len(served.facts.all(Finished)) == 4


async def test_a_flow_that_takes_too_much_fails_while_others_are_served(served):
    await put(served)
    assert (await put(served, WIDE, "wide")).status == 200
    greedy = asyncio.create_task(invoke(served, {"xs": list(range(2_000))}, "wide"))
    await asyncio.sleep(0)
    assert (await invoke(served, {"text": "x"})).status == 200
    answer = await greedy
    assert (answer.status, answer.error()["code"]) == (422, "flow_failed")
    assert "the row takes more than 100000 steps" in answer.error()["message"]


async def test_a_flow_whose_templates_compute_for_too_long_fails(served, monkeypatch):
    monkeypatch.setattr("kairos.workflows.serve.invocation.COMPUTE_S", 0.2)
    flow = """
flow: slow
operators:
  row: {kind: input}
  all:
    kind: map
    over: row.xs
    max_items: 10000
    result: looped
    body:
      looped:
        kind: format
        template: "{% for a in row.xs %}{% if a is even %}{% endif %}{% endfor %}{{ item }}"
outputs: {all: all}
"""
    assert (await put(served, flow, "slow")).status == 200
    answer = await invoke(served, {"xs": list(range(5_000))}, "slow")
    assert (answer.status, answer.error()["code"]) == (422, "flow_failed")
    assert "the row computes for too long" in answer.error()["message"]
    assert (await invoke(served, {"xs": [1, 2]}, "slow")).json()["outputs"] == {"all": ["1", "2"]}
