"""`kairos serve --workers N`: real processes, some of which die."""

import asyncio
import json
import os
import re
import signal
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import aiohttp
import pytest

from kairos.core import Arrived, Failed, Started
from kairos.gateway import listening_socket
from kairos.observe import read_facts
from tests.e2e.gateway.test_serve_command import keys, spawn
from tests.support.host.forked import children
from tests.support.otlp import collecting
from tests.support.waiting import until

LIMIT_S = 60
CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


def is_there(pid):
    with suppress(FileNotFoundError, ProcessLookupError):
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    return False


def decider_of(served):
    """The one there is now."""
    return next(pid for pid in children(served.process.pid) if pid not in served.workers)


class Served:
    def __init__(self, process, started, session):
        self.process, self._session = process, session
        self.url, self.admin_url = re.findall(r"http://[0-9.]+:\d+", started)
        self.decider, *self.workers = children(process.pid)

    async def ask(self, path=CHAT, body=BODY, method="POST", headers=None, url=None):
        """One call on a connection of its own: its status, what was answered, its id."""
        options = {"json": body} if method == "POST" else {}
        url = (url or self.url) + path
        try:
            async with self._session.request(method, url, headers=headers, **options) as response:
                return response.status, await response.read()
        except aiohttp.ClientError as error:
            return type(error).__name__, b""

    async def get(self, path):
        return (await self.ask(path, method="GET"))[1].decode()

    async def metric(self, name):
        found = re.search(rf"^{re.escape(name)} (\S+)$", await self.get("/metrics"), re.MULTILINE)
        return float(found[1]) if found else None

    async def until_metric(self, name, value):
        async with asyncio.timeout(LIMIT_S):
            while await self.metric(name) != value:
                await asyncio.sleep(0.05)

    async def status(self):
        return json.loads((await self.ask("/admin/status", method="GET", url=self.admin_url))[1])

    async def waiting(self, number):
        async with asyncio.timeout(LIMIT_S):
            while (await self.status())["waiting"] != number:
                await asyncio.sleep(0.02)

    async def joined(self):
        async with asyncio.timeout(LIMIT_S):
            while (await self.ask("/health", method="GET"))[0] != 200:
                await asyncio.sleep(0.05)

    async def replaced(self, pid):
        """Until another process is there for one that is killed."""
        os.kill(pid, signal.SIGKILL)
        await until(lambda: pid not in children(self.process.pid))
        await until(lambda: len(children(self.process.pid)) == 1 + len(self.workers))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)

    async def ended(self):
        async with asyncio.timeout(LIMIT_S):
            output, errors = await self.process.communicate()
        return self.process.returncode, output.decode(), errors.decode()


@pytest.fixture
async def serve(tmp_path):
    """`await serve(ENGINE, OPTION, ...)`; its temporary files are in `tmp_path`."""
    processes = []
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def start(*arguments, **environ):
            process = await spawn(
                *("--port", "0", "--admin-port", "0", "--workers", "2"), *arguments,
                TMPDIR=str(tmp_path), **environ,
            )  # fmt: skip
            processes.append(process)
            async with asyncio.timeout(LIMIT_S):
                started = (await process.stdout.readline()).decode()
            assert started, (await process.communicate())[1].decode()
            served = Served(process, started, session)
            await served.joined()
            return served

        yield start
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def test_calls_refusals_and_what_is_known_of_them_are_whole(serve, engine):
    served = await serve("--engine", engine.url)
    answers = await asyncio.gather(*(served.ask() for _ in range(30)))
    assert {status for status, _ in answers} == {200}
    status, refused = await served.ask(body=BODY | {"model": "nope"})
    assert (status, json.loads(refused)["error"]["code"]) == (404, "model_not_found")
    await served.until_metric('kairos_calls_total{outcome="finished"}', 30)
    await served.until_metric('kairos_errors_total{code="model_not_found"}', 1)
    assert json.loads(await served.get("/v1/models"))["data"][0]["id"] == "tiny"
    named = {"x-request-id": "a", "x-kairos-workflow-id": "flow", "x-kairos-agent": "one"}
    assert (await served.ask(headers=named))[0] == 200
    workflow = json.loads(await served.get("/v1/workflows/flow"))
    assert [call["id"] for call in workflow["calls"]] == ["a"]


async def test_the_operators_page_shows_what_all_of_them_do(serve, engine):
    engine.answer = engine.when_released
    served = await serve("--engine", f"{engine.url},max_num_seqs=2")
    calls = [asyncio.create_task(served.ask()) for _ in range(6)]
    await served.waiting(4)
    told = json.loads((await served.ask("/ui/data/now", method="GET", url=served.admin_url))[1])
    assert (told["running"], told["queue"]["total"]) == (2, 4)
    assert [call["place"] for call in told["queue"]["calls"]] == [1, 2, 3, 4]
    engine.release(6)
    assert {(await call)[0] for call in calls} == {200}


async def test_the_process_that_starts_the_others_runs_no_thread(serve, engine):
    """A copy has what its threads held, locks among it, and none to let go of it."""
    served = await serve("--engine", engine.url)
    assert len(list(Path(f"/proc/{served.process.pid}/task").iterdir())) == 1


async def test_a_stream_passes_whole(serve, engine):
    part = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
    engine.answer = engine.stream(part, part, b"data: [DONE]\n\n")
    engine.release(3)
    served = await serve("--engine", engine.url)
    status, answer = await served.ask(body=BODY | {"stream": True})
    assert status == 200
    assert answer.endswith(part * 2 + b"data: [DONE]\n\n")


async def test_told_to_stop_it_finishes_calls_and_leaves_nothing_behind(serve, engine, tmp_path):
    engine.answer = engine.when_released
    served = await serve("--engine", engine.url, fresh=True)
    calls = [asyncio.create_task(served.ask()) for _ in range(6)]
    await engine.called(6)
    processes = children(served.process.pid)
    served.stop()
    engine.release(6)
    assert {(await call)[0] for call in calls} == {200}
    status, _, errors = await served.ended()
    assert (status, "Traceback" in errors) == (0, False)
    assert not any(map(is_there, processes))
    assert list(tmp_path.iterdir()) == []
    with listening_socket("127.0.0.1", int(served.url.rsplit(":", 1)[1])):
        pass  # the port is free


async def test_other_settings_reach_all_processes(serve, engines, tmp_path):
    first, second = await engines(), await engines()
    second.models = ["other"]
    file = tmp_path / "kairos.toml"
    file.write_text(f'[[engine]]\nurl = "{first.url}"\n')
    served = await serve("--config", str(file))
    file.write_text(f'[[engine]]\nurl = "{second.url}"\n')
    served.process.send_signal(signal.SIGHUP)
    async with asyncio.timeout(LIMIT_S):
        while '"other"' not in await served.get("/v1/models"):
            await asyncio.sleep(0.05)
    answers = await asyncio.gather(*(served.ask(body=BODY | {"model": "other"}) for _ in range(20)))
    assert {status for status, _ in answers} == {200}
    assert len(second.calls) == 20


async def test_another_policy_reaches_the_process_that_decides(serve, engine, tmp_path):
    (tmp_path / "log").mkdir()
    file = tmp_path / "log" / "kairos.toml"
    settings = f'log_dir = "{tmp_path / "log"}"\n[[engine]]\nurl = "{engine.url}"\n'
    file.write_text(settings)
    served = await serve("--config", str(file))
    file.write_text(f'policy = "fcfs"\n{settings}')
    served.process.send_signal(signal.SIGHUP)

    def logged():
        return b"".join(each.read_bytes() for each in (tmp_path / "log").glob("facts-*"))

    async with asyncio.timeout(LIMIT_S):
        while b'{"type":"PolicyChosen","policy":"fcfs"}' not in logged():
            await asyncio.sleep(0.1)


async def test_keys_that_are_revoked_are_refused_by_all_processes(serve, engine, tmp_path):
    (tmp_path / "keys").mkdir()
    file = str(tmp_path / "keys" / "keys.toml")
    secret = keys("create", "--tenant", "acme", "--name", "ci", "--expires", "90d", file)
    served = await serve("--engine", engine.url, KAIROS_KEYS_PATH=file)

    async def statuses(path, method):
        """Of a call that workers perform, or that they pass on to the decider."""
        headers = {"authorization": f"Bearer {secret}"}
        asked = (served.ask(path, method=method, headers=headers) for _ in range(20))
        return {status for status, _ in await asyncio.gather(*asked)}

    assert await statuses(CHAT, "POST") == {200}
    assert await statuses("/v1/models", "GET") == {200}
    await asyncio.to_thread(keys, "revoke", "ci", file)
    served.process.send_signal(signal.SIGHUP)
    async with asyncio.timeout(LIMIT_S):
        while await statuses(CHAT, "POST") | await statuses("/v1/models", "GET") != {401}:
            await asyncio.sleep(0.05)
    await served.replaced(served.workers[0])
    assert await statuses(CHAT, "POST") == {401}
    assert (await served.ask())[0] == 401


async def test_tokens_let_callers_in_at_all_processes(serve, engine, issuer, tmp_path):
    (tmp_path / "settings").mkdir()
    file = tmp_path / "settings" / "kairos.toml"
    file.write_text(f'[oidc]\nissuer = "{issuer.url}"\naudience = "kairos"\n')
    served = await serve("--engine", engine.url, "--config", str(file))
    headers = {"authorization": f"Bearer {issuer.token()}"}
    for path, method in ((CHAT, "POST"), ("/v1/models", "GET"), ("/v1/agents", "GET")):
        asked = (served.ask(path, method=method, headers=headers) for _ in range(10))
        assert {status for status, _ in await asyncio.gather(*asked)} == {200}
        assert (await served.ask(path, method=method))[0] == 401
    await served.replaced(decider_of(served))
    assert (await served.ask(headers=headers))[0] == 200
    assert (await served.ask("/v1/models", method="GET", headers=headers))[0] == 200


async def test_all_processes_write_one_audit_log(serve, engine, tmp_path):
    (tmp_path / "settings").mkdir()
    file, log = (tmp_path / "settings" / name for name in ("kairos.toml", "audit.jsonl"))
    digest = sha256(b"kai-1").hexdigest()
    file.write_text(
        f'audit_log = "{log}"\n[[key]]\nsha256 = "{digest}"\ntenant = "ops"\nrole = "admin"\n'
    )
    served = await serve("--engine", engine.url, "--config", str(file))
    headers = {"authorization": "Bearer kai-1"}
    assert (await served.ask(headers=headers))[0] == 200
    assert (await served.ask())[0] == 401
    assert (await served.ask("/v1/agents", method="GET"))[0] == 401
    url = "/admin/instances/no:1"
    assert (await served.ask(url, method="DELETE", url=served.admin_url))[0] == 401
    assert (await served.ask(url, method="DELETE", url=served.admin_url, headers=headers))[0] == 404
    served.process.send_signal(signal.SIGHUP)

    def told():
        lines = map(json.loads, log.read_text().splitlines())
        return sorted((each["what"], each.get("status", 0), each.get("port", "")) for each in lines)

    expected = [
        (f"DELETE {url}", 404, "operators"),
        ("refused", 401, "callers"),  # by a worker
        ("refused", 401, "callers"),  # by the decider
        ("refused", 401, "operators"),
        ("reload", 0, ""),  # by the supervisor
    ]
    await until(lambda: told() == expected)


async def test_a_worker_that_dies_costs_its_own_calls(serve, engine):
    engine.answer = engine.when_released
    served = await serve("--engine", f"{engine.url},max_num_seqs=24")
    calls = [asyncio.create_task(served.ask()) for _ in range(40)]
    await engine.called(24)
    await served.waiting(16)
    await served.replaced(served.workers[0])
    await until(lambda: sum(call.done() for call in calls) > 0)
    engine.release(80)
    outcomes = [status for status, _ in await asyncio.gather(*calls)]
    lost = sum(status == "ServerDisconnectedError" for status in outcomes)
    lost += sum(status == "ClientOSError" for status in outcomes)
    assert 0 < lost < 40  # both workers had some
    assert outcomes.count(200) == 40 - lost
    await served.until_metric('kairos_calls_total{outcome="finished"}', 40 - lost)
    await served.until_metric('kairos_calls_total{outcome="cancelled"}', lost)
    status = await served.status()
    assert [each["running"] for each in status["instances"].values()] == [0]
    answers = await asyncio.gather(*(served.ask() for _ in range(20)))  # some by the new one
    assert {status for status, _ in answers} == {200}


async def test_a_decider_that_dies_is_replaced_with_the_queue_as_it_was(serve, engine, tmp_path):
    engine.answer = engine.when_released
    log = tmp_path / "log"
    options = "--engine", f"{engine.url},max_num_seqs=2", "--policy", "fcfs", "--log", str(log)
    served = await serve(*options)
    calls = []
    for number in range(12):
        headers = {"x-request-id": f"call-{number}"}
        calls.append(asyncio.create_task(served.ask(headers=headers)))
        if number < 2:
            await engine.called(number + 1)
        else:
            await served.waiting(number - 1)
    await until(lambda: sum(type(each.event) is Arrived for each in read_facts(log)) == 12)
    await served.replaced(served.decider)
    await served.waiting(10)
    status = await served.status()
    assert [each["running"] for each in status["instances"].values()] == [2]
    assert len(engine.calls) == 2  # what runs was not started again
    for number in range(12):
        engine.release()
        await until(lambda done=number + 1: sum(call.done() for call in calls) == done)
    assert {(await call)[0] for call in calls} == {200}
    order = [call.headers["x-request-id"] for call in engine.calls]
    assert order[2:] == [f"call-{number}" for number in range(2, 12)]
    await served.until_metric('kairos_calls_total{outcome="finished"}', 12)
    served.stop()
    await served.ended()
    facts = [each.event for each in read_facts(log)]
    [_, successor] = [each for each in facts if type(each) is Started]
    assert set(successor.calls) == {f"call-{number}" for number in range(12)}
    assert not any(type(each) is Failed for each in facts)  # none is taken for lost


async def test_every_call_under_load_is_answered_once_though_deciders_die(serve, engine):
    served = await serve("--engine", f"{engine.url},max_num_seqs=8")
    asked, outcomes = iter(range(600)), []

    async def client():
        for number in asked:
            status, _ = await served.ask(headers={"x-request-id": f"call-{number}"})
            outcomes.append(status)

    clients = [asyncio.create_task(client()) for _ in range(16)]
    for killed_at in (100, 300):
        await until(lambda at=killed_at: len(outcomes) >= at)
        await served.replaced(decider_of(served))
    await asyncio.gather(*clients)
    assert outcomes == [200] * 600
    ids = [call.headers["x-request-id"] for call in engine.calls]
    assert sorted(ids) == sorted({f"call-{number}" for number in range(600)})
    assert (await served.status())["waiting"] == 0


async def test_an_engine_that_an_operator_added_outlives_the_decider(serve, engines):
    first, second = await engines(), await engines()
    second.models = ["other"]
    served = await serve("--engine", first.url)
    added = await served.ask("/admin/instances", {"url": second.url}, url=served.admin_url)
    assert added[0] in (200, 201, 202)
    async with asyncio.timeout(LIMIT_S):
        while '"other"' not in await served.get("/v1/models"):
            await asyncio.sleep(0.05)
    await served.replaced(served.decider)
    status, _ = await served.ask(body=BODY | {"model": "other"})
    assert (status, len(second.calls)) == (200, 1)


async def test_no_process_outlives_the_supervisor(serve, engine):
    served = await serve("--engine", engine.url)
    processes = children(served.process.pid)
    assert len(processes) == 3
    served.process.kill()
    await until(lambda: not any(map(is_there, processes)))


async def test_on_kafka_it_says_what_to_do_instead():
    process = await spawn(
        "--engine", "http://127.0.0.1:1", "--workers", "2", "--bus", "kafka://127.0.0.1:1"
    )
    _, errors = await process.communicate()
    assert process.returncode == 1
    assert "leave out --workers" in errors.decode()


async def test_calls_of_a_worker_that_is_stopped_give_their_room_back(serve, engine):
    engine.answer = engine.when_released
    served = await serve("--engine", f"{engine.url},max_num_seqs=64")
    calls = [asyncio.create_task(served.ask()) for _ in range(30)]
    await engine.called(30)
    os.kill(served.workers[0], signal.SIGSTOP)
    async with asyncio.timeout(LIMIT_S):
        while await running(served) == 30:
            await asyncio.sleep(0.1)
    kept = await running(served)
    assert 0 < kept < 30
    os.kill(served.workers[0], signal.SIGCONT)
    engine.release(30)
    answers = await asyncio.gather(*calls)  # those that ran went on
    assert {status for status, _ in answers} == {200}
    await served.until_metric('kairos_calls_total{outcome="finished"}', kept)
    await served.until_metric('kairos_calls_total{outcome="cancelled"}', 30 - kept)


async def running(served):
    return sum(each["running"] for each in (await served.status())["instances"].values())


async def test_what_keeps_a_process_from_its_work_ends_all_of_it(engine, tmp_path):
    file = tmp_path / "file"
    file.write_text("in the way")
    process = await spawn("--engine", engine.url, "--port", "0", "--admin-port", "0",
                          "--workers", "2", "--log", str(file), TMPDIR=str(tmp_path))  # fmt: skip
    async with asyncio.timeout(LIMIT_S):
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert f"cannot use the log directory {file}" in errors.decode()
    assert list(tmp_path.iterdir()) == [file]


async def test_workers_and_the_decider_trace_a_workflow_as_one(serve, engine, tmp_path):
    async with collecting() as collector:
        path = tmp_path / "kairos.toml"
        path.write_text(f'[telemetry]\notlp_endpoint = "{collector.url}"')
        served = await serve("--engine", engine.url, "--config", str(path))
        headers = {"x-kairos-workflow-id": "flow", "x-kairos-app": "report"}
        answers = await asyncio.gather(*(served.ask(headers=headers) for _ in range(6)))
        assert {status for status, _ in answers} == {200}
        await served.ask("/v1/workflows/flow/end", headers=headers)
        await collector.having(6 * 3 + 1)
    (root,) = (each for each in collector.spans if each.parent is None)
    assert root.attributes["kairos.calls"] == 6
    one = ("POST /v1/chat/completions", ("queue",), ("chat tiny",))
    assert collector.tree(root) == ("invoke_workflow report", *[one] * 6)
