"""`kairos replay` as a person runs it."""

import asyncio
import json
import signal

from aiohttp import web

from tests.e2e.simulate.test_replay import RECORDED, Scripted, answer, call, never
from tests.support.host import forked
from tests.support.simulate.model import write_workflows

LIMIT_S = 60.0


def started(*options, **given):
    return forked.running("replay", *options, COLUMNS="150", **given)


def replayed(*options, **given):
    """Exit status, what it printed, and what it said beside."""
    return forked.outcome("replay", *options, COLUMNS="150", **given)


def recorded(path, *workflows):
    """A workflow file: a workflow for each list of agents, named by its number."""
    calls = [
        call(index, agent, workflow_id=f"w{number}")
        for number, agents in enumerate(workflows)
        for index, agent in enumerate(agents)
    ]
    write_workflows(path, calls)
    return path


async def test_a_recorded_file_runs_through_a_gateway_and_its_figures_are_printed(kairos, standin):
    served = await kairos(standin.url)
    options = ("--workflows", RECORDED, "--url", served.url, "--rate", "100", "--count", "4")
    status, printed, _ = await replayed(*options, "--json")
    assert status == 0
    figures = json.loads(printed)
    assert figures["workflows"] == figures["replay"]["finished"] == 4
    assert figures["replay"]["prompt_deviation"]["worst"] == 0
    assert figures["e2e_s"]["p50"] > 0

    status, printed, _ = await replayed(*options, "--no-stream", fresh=True)
    assert status == 0
    assert "Applications" in printed
    assert "of 4 workflows 4 finished, 0 failed, 0 did not end in time" in printed
    assert "Prompt tokens, counted less recorded: median +0, worst +0" in printed


async def test_the_file_comes_again_where_it_has_too_few_workflows(engine, tmp_path):
    server = Scripted(engine)
    path = recorded(tmp_path / "w.jsonl", ["first", "second"])
    options = ("--workflows", path, "--url", engine.url, "--rate", "100", "--count", "3")
    assert (await replayed(*options))[0] == 0
    assert sorted(server.agents()) == ["first"] * 3 + ["second"] * 3
    texts = {json.loads(each.body)["messages"][0]["content"] for each in server.calls}
    assert len(texts) == 6  # no repetition finds what it says in a cache


async def test_contexts_are_shortened_on_demand(engine, tmp_path):
    server = Scripted(engine)
    path = recorded(tmp_path / "w.jsonl", ["first"])
    await replayed("--workflows", path, "--url", engine.url, "--max-context", "15")
    (sent,) = [json.loads(each.body) for each in server.calls]
    assert len(sent["messages"][0]["content"].split()) == 10
    assert sent["max_tokens"] == 5


async def test_ctrl_c_shows_what_finished_and_gives_up_the_rest(engine, tmp_path):
    async def reply(agent, _):
        return await never() if agent == "slow" else answer()

    server = Scripted(engine, reply)
    path = recorded(tmp_path / "w.jsonl", ["quick"], ["slow"])
    options = ("--workflows", path, "--url", engine.url, "--rate", "100")
    async with started(*options, "--json") as process:
        await engine.until(lambda: len(server.calls) == 2 and server.ends)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(LIMIT_S):
            printed, said = await process.communicate()

    assert process.returncode == 130
    assert b"Traceback" not in said
    figures = json.loads(printed)
    assert figures["workflows"] == 1
    assert (figures["replay"]["finished"], figures["replay"]["unfinished"]) == (1, 1)
    await engine.until(lambda: engine.lost == 1)


async def test_what_has_not_finished_in_time_is_said_and_makes_it_fail(engine, tmp_path):
    Scripted(engine, never)
    path = recorded(tmp_path / "w.jsonl", ["slow"])
    options = ("--workflows", path, "--url", engine.url, "--time-limit", "0.5")
    status, printed, _ = await replayed(*options)
    assert status == 1
    assert "of 1 workflows 0 finished, 0 failed, 1 did not end in time" in printed


async def test_a_broken_file_is_refused_with_its_line_before_anything_is_sent(engine, tmp_path):
    path = recorded(tmp_path / "w.jsonl", ["one", "two"])
    good = path.read_text()
    path.write_text(good + good.splitlines()[1].replace('"call_index":1', '"call_index":0') + "\n")
    status, printed, said = await replayed("--workflows", path, "--url", engine.url)
    assert (status, printed) == (1, "")
    assert said.startswith(f"kairos: {path}:3: ")
    assert engine.calls == engine.probes == []


async def test_where_nobody_listens_it_says_so(unused_port, tmp_path):
    path = recorded(tmp_path / "w.jsonl", ["one"])
    url = f"http://127.0.0.1:{unused_port}"
    status, printed, said = await replayed("--workflows", path, "--url", url)
    assert (status, printed) == (1, "")
    assert said.startswith(f"kairos: no connection to {url}/v1/models")


async def test_calls_for_which_there_are_no_open_files_are_told_of(engine, tmp_path):
    Scripted(engine, never)
    path = recorded(tmp_path / "w.jsonl", *[["slow"]] * 100)
    options = ("--workflows", path, "--url", engine.url, "--rate", "1000", "--time-limit", "3")
    status, printed, said = await replayed(*options, "--json", open_files=(64, 64))
    figures = json.loads(printed)["replay"]
    assert status == 1
    assert figures["begun"] == 100
    assert 40 < figures["not_sent"] == figures["failed"] < 100
    assert figures["not_sent"] + figures["unfinished"] == 100
    assert not figures["kept_up"]
    assert "this machine could not keep up" in said


async def test_there_may_be_more_connections_than_the_soft_limit_on_open_files(engine, tmp_path):
    async def all_at_once(*_):
        await engine.until(lambda: len(server.calls) == 100)
        return answer()

    server = Scripted(engine, all_at_once)
    path = recorded(tmp_path / "w.jsonl", *[["slow"]] * 100)
    options = ("--workflows", path, "--url", engine.url, "--rate", "1000")
    assert (await replayed(*options, open_files=64))[0] == 0


async def test_each_request_of_a_trace_is_a_workflow(engine, tmp_path):
    server = Scripted(engine)
    trace = tmp_path / "chat.csv"
    rows = ("00:00.00,12,3", "00:00.10,20,4", "00:00.15,9,5")
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens", *(f"2023-11-16 18:{row}" for row in rows)]
    trace.write_text("\n".join(lines) + "\n")
    status, printed, _ = await replayed("--workflows", trace, "--url", engine.url, "--json")
    assert status == 0
    assert list(json.loads(printed)["apps"]) == ["chat"]
    sent = [json.loads(each.body) for each in server.calls]
    lengths = [(len(b["messages"][0]["content"].split()), b["max_tokens"]) for b in sent]
    assert lengths == [(12, 3), (20, 4), (9, 5)]


async def test_a_key_is_taken_from_the_variable_that_is_named(engine, tmp_path):
    server = Scripted(engine)
    path = recorded(tmp_path / "w.jsonl", ["one"])
    options = ("--workflows", path, "--url", engine.url, "--api-key-env", "MY_KEY")
    status, printed, said = await replayed(*options, MY_KEY="secret")
    assert status == 0
    assert server.calls[0].headers["authorization"] == "Bearer secret"
    assert "secret" not in printed + said

    status, _, said = await replayed(*options)
    assert (status, said) == (1, "kairos: the variable MY_KEY is not set\n")


async def test_what_a_server_says_does_not_steer_the_terminal(engine, tmp_path):
    async def reply(*_):
        return web.json_response({"error": {"message": "\x1b[31mred\nline"}}, status=413)

    Scripted(engine, reply)
    path = recorded(tmp_path / "w.jsonl", ["one"])
    status, printed, _ = await replayed("--workflows", path, "--url", engine.url)
    assert status == 1
    assert "answered 413: ?[31mred?line" in printed
