"""`kairos explain` and `kairos export` as a person runs them."""

import json

import pytest

from kairos.core import Finished
from kairos.observe import fact_log, read_facts
from tests.e2e.observe.test_insight import AS_ACME, said
from tests.e2e.test_identity import KEYS
from tests.support.host import forked
from tests.support.simulate.model import read_workflows
from tests.support.waiting import until


async def run(*arguments, **given):
    """What the command prints, what it says besides, and its exit status."""
    status, printed, errors = await forked.outcome(*map(str, arguments), **given)
    assert "Traceback" not in errors, errors
    return printed, errors, status


@pytest.fixture(autouse=True)
def quick_log(monkeypatch):
    monkeypatch.setattr(fact_log, "FLUSH_S", 0.02)


async def until_logged(served, directory):
    """All facts so far are in the log."""
    facts = len(served.facts.records)
    await until(lambda: len(list(read_facts(directory))) >= facts)


async def two_calls(served, **headers):
    for agent, upstream in (("router", "user"), ("expert", "router")):
        await served.chat(headers=said(agent, upstream=upstream, request_id=f"{agent}-1") | headers)
    await served.facts.seen(Finished, 2)
    await served.ask("POST", "/v1/workflows/w-1/end", headers=headers)


async def test_a_workflow_is_explained_by_the_service_and_by_its_log_alike(
    kairos, standin, tmp_path
):
    served = await kairos(standin.url, log_dir=str(tmp_path))
    await two_calls(served)
    tree, _, status = await run("explain", "w-1", "--url", served.url, fresh=True)
    live, _, _ = await run("explain", "w-1", "--url", f"{served.url}/v1/", "--json")
    await until_logged(served, tmp_path)
    logged, _, _ = await run("explain", "w-1", "--log", tmp_path, "--json")
    costs, _, _ = await run("explain", "w-1", "--log", tmp_path, "--costs")
    _, errors, failed = await run("explain", "w-1", "--url", served.url, "--costs")

    assert status == 0
    assert costs.count(" (chosen): ") == 2
    assert (failed, "name its directory with --log" in errors) == (1, True)
    assert "w-1 of qa: ended after" in tree
    assert tree.index("router router-1") < tree.index("expert expert-1")
    assert "expected work of the workflow from here on" in tree
    assert json.loads(live)["calls_total"] == 2
    assert json.loads(logged) == json.loads(live)


async def test_a_trace_tells_of_the_same_calls_from_the_service_and_from_its_log(
    kairos, standin, tmp_path
):
    log, live, logged, whole = (tmp_path / each for each in ("log", "live", "logged", "whole"))
    served = await kairos(standin.url, log_dir=str(log))
    await two_calls(served)
    told, _, status = await run("explain", "w-1", "--url", served.url, "--perfetto", live)
    await until_logged(served, log)
    await run("explain", "w-1", "--log", log, "--perfetto", logged)
    said, _, exported = await run(
        "export", "--since=1h", "--log", log, "--perfetto", whole, "--json"
    )

    assert (status, told, exported) == (0, f"{live}: 2 calls\n", 0)
    assert json.loads(said) == {"calls": 2}
    events = json.loads(live.read_bytes())["traceEvents"]
    assert json.loads(logged.read_bytes())["traceEvents"] == events
    calls = [each for each in events if each["ph"] == "X" and each["cat"] == "call"]
    assert [each["name"] for each in calls] == ["router", "expert"]
    for each in json.loads(whole.read_bytes())["traceEvents"]:
        assert each in events or each.get("cat") in {"workflow", "call", "wait"}


async def test_a_key_is_taken_from_the_variable_that_is_named(kairos, standin):
    served = await kairos(standin.url, key=KEYS)
    await two_calls(served, **AS_ACME)
    command = ("explain", "w-1", "--url", served.url)
    shown, _, status = await run(*command, "--api-key-env", "MINE", MINE="acme")
    assert (status, "router-1" in shown) == (0, True)

    for name, said_of_it in (
        (None, "401: send an API key"),
        ("THEIRS", "404: the workflow 'w-1' is not known here"),
        ("UNSET", "the variable UNSET is not set"),
    ):
        options = () if name is None else ("--api-key-env", name)
        _, errors, status = await run(*command, *options, THEIRS="bell")
        assert status == 1
        assert said_of_it in errors


async def test_where_no_kairos_answers_it_says_so(engine, unused_port, tmp_path):
    for url, said_of_it in (
        (f"http://127.0.0.1:{unused_port}", "refused"),
        ("nonsense", "is not a URL like"),
        (engine.url, "is not a Kairos"),
    ):
        _, errors, status = await run("explain", "w-1", "--url", url)
        assert status == 1
        assert said_of_it in errors
    _, errors, status = await run("explain", "w-1", "--log", tmp_path / "no")
    assert (status, "there is no directory" in errors) == (1, True)


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
async def test_a_log_becomes_a_workflow_file(kairos, standin, tmp_path, name):
    served = await kairos(standin.url, log_dir=str(tmp_path / "log"))
    await two_calls(served)
    await served.chat()  # says nothing of itself: a workflow of its own
    await served.facts.seen(Finished, 3)
    await until_logged(served, tmp_path / "log")
    out = tmp_path / name
    options = ("--output", out, "--json")
    figures, errors, status = await run(
        *("export", "--since", "1h", "--log", tmp_path / "log", *options),
        fresh=name.endswith(".gz"),
    )
    again, _, _ = await run("export", "--since=all", *options, KAIROS_LOG_DIR=str(tmp_path / "log"))

    assert (errors, status) == ("", 0)
    assert json.loads(figures) == {"calls": 3, "workflows": {"exported": 2}} == json.loads(again)
    calls = list(read_workflows(out))
    assert [(call.agent, call.upstream) for call in calls] == [
        ("router", "user"),
        ("expert", "router"),
        ("unknown", None),
    ]
    finished = served.facts.all(Finished)
    assert [call.completion_tokens for call in calls] == [f.completion_tokens for f in finished]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--since", "soon", "--log", "."), "'soon' is not a time to begin at: write a duration"),
        (("--since", "all", "--log", "nowhere"), "there is no directory nowhere"),
        (("--since", "all", "--log", "."), "there are no facts in ."),
    ],
)
async def test_what_cannot_be_exported_is_said_in_one_line(options, message):
    _, errors, status = await run("export", *options)

    assert status == 1
    assert errors.startswith(f"kairos: {message}")
    assert errors.count("\n") == 1
