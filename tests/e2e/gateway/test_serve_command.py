"""`kairos serve` as people start it: a process with options, signals, output and an exit code."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256

import aiohttp
import openai
import pytest

from kairos import service
from kairos.core import (
    PLACEMENTS,
    POLICIES,
    Arrived,
    Balancer,
    Cancelled,
    Failed,
    Finished,
    InstanceJoined,
    Started,
    WorkflowEnded,
)
from kairos.gateway.server import http
from kairos.host import start_child
from kairos.observe import read_facts
from kairos.settings import EngineSettings, Settings
from tests.support.host import forked

LIMIT_S = 60
CHAT = "/v1/chat/completions"
CHUNK = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


# `kairos`, to which a hangup comes before it serves.
HUNG_UP_EARLY = """
import contextlib, os, signal
from kairos.cli.main import main
from kairos import service

@contextlib.asynccontextmanager
async def hung_up(settings, running=service.running):
    os.kill(os.getpid(), signal.SIGHUP)
    async with running(settings) as live:
        yield live

service.running = hung_up
main()
"""


class Process:
    """A `kairos serve` that serves."""

    def __init__(self, process, started):
        self._process, self.started = process, started
        self.url, self.admin_url = re.findall(r"http://[0-9.]+:\d+", started)

    def signal(self, number):
        self._process.send_signal(number)

    async def said(self, text):
        """Read what it logs until it says that."""
        async with asyncio.timeout(LIMIT_S):
            while text not in (line := (await self._process.stderr.readline()).decode()):
                assert line, f"it ended without saying {text!r}"
        return line

    async def ended(self):
        """Exit code, and what it printed after it was started."""
        async with asyncio.timeout(LIMIT_S):
            output, errors = await self._process.communicate()
        return self._process.returncode, output.decode(), errors.decode()


async def spawn(*arguments, program=None, open_files=None, fresh=False, **environ):
    """`kairos serve` with no settings but these. `program`: the code of one around it."""
    inherited = {name: value for name, value in os.environ.items() if "KAIROS" not in name}
    given = {"env": inherited | environ, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if program:
        command = (sys.executable, "-c", program, "serve", *arguments)
        return await start_child(*command, **given)
    command = ("kairos.cli.main", "serve", *arguments)
    return await forked.start(*command, fresh=fresh, open_files=open_files, **given)


@pytest.fixture
async def serve():
    """`await serve(OPTION, ...)` starts one on free ports and waits until it listens."""
    processes = []

    async def start(*arguments, **environ):
        process = await spawn("--port", "0", "--admin-port", "0", *arguments, **environ)
        processes.append(process)
        async with asyncio.timeout(LIMIT_S):
            started = (await process.stdout.readline()).decode()
        assert started, (await process.communicate())[1].decode()
        return Process(process, started)

    yield start
    for process in processes:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as session:
        yield session


async def joined(session, served):
    """Wait until an instance can take requests; there is no event to wait for from outside."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            async with session.get(f"{served.url}/health") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.02)


async def status(session, served):
    async with session.get(f"{served.admin_url}/admin/status") as response:
        return await response.text()


async def chat(session, served, **fields):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]} | fields
    async with session.post(served.url + CHAT, json=body) as response:
        return response.status, await response.read()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
async def test_it_says_where_it_serves_serves_there_and_stops_when_told(
    serve, session, standin, stop
):
    served = await serve("--engine", standin.url, fresh=stop == signal.SIGTERM)
    assert served.started == (
        f"kairos: serving on {served.url}/v1, operators' routes on {served.admin_url}\n"
    )
    await joined(session, served)
    base_url = f"{served.url}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key="-", max_retries=0) as client:
        answer = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=3
        )
    assert answer.usage.completion_tokens == 3
    served.signal(stop)

    stopping = "kairos: stopping; running calls may finish\n"
    name = standin.url.removeprefix("http://")
    told = f"kairos: instance {name} serves tiny: at most 256 calls at once, 65536 KV tokens\n"
    assert await served.ended() == (0, stopping, told)


async def test_budgets_of_workflows_stand_in_the_file_and_in_the_environment(
    serve, session, engine, configured
):
    file = configured("budget_calls = 9", "budget_s = 3600", named(engine))
    served = await serve("--config", file, KAIROS_BUDGET_CALLS="1")
    await joined(session, served)
    session.headers["X-Kairos-Workflow-Id"] = "w"
    assert (await chat(session, served))[0] == 200
    status, said = await chat(session, served)
    assert status == 403
    assert b'"code": "budget_calls"' in said
    session.headers["X-Kairos-Workflow-Id"] = "v"
    assert (await chat(session, served))[0] == 200


async def test_there_may_be_more_connections_than_the_soft_limit_on_open_files(
    serve, session, standin
):
    served = await serve("--engine", standin.url, open_files=64)
    await joined(session, served)

    answers = await asyncio.gather(*(chat(session, served, max_tokens=2) for _ in range(90)))

    assert {status for status, _ in answers} == {200}


async def test_it_says_once_which_engine_is_not_in_use_and_why(serve, session):
    held = socket.socket()  # bound and not listening: nobody else gets the port
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    served = await serve("--engine", f"http://127.0.0.1:{port}")
    async with asyncio.timeout(LIMIT_S):
        while "nothing answers" not in await status(session, served):
            await asyncio.sleep(0.02)  # the process has no event for us
    served.signal(signal.SIGTERM)

    _, _, told = await served.ended()
    held.close()
    assert told == (
        f"kairos: instance 127.0.0.1:{port} is not in use: "
        "nothing answers there (Connection refused)\n"
    )


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
async def test_a_stream_that_runs_when_it_is_stopped_runs_to_its_end(serve, session, engine, stop):
    served = await serve("--engine", engine.url)
    await joined(session, served)
    engine.answer = engine.stream(CHUNK, CHUNK, DONE)
    engine.release()
    body = {"model": "tiny", "messages": [], "stream": True}
    async with session.post(served.url + CHAT, json=body) as response:
        assert await response.content.readany() == CHUNK
        served.signal(stop)
        await refuses_connections(served)
        engine.release(2)
        assert await response.read() == CHUNK + DONE

    assert (await served.ended())[0] == 0


async def refuses_connections(served):
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                _, writer = await asyncio.open_connection(
                    "127.0.0.1", served.url.rpartition(":")[2]
                )
            except ConnectionError:
                return
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            await asyncio.sleep(0.02)


async def test_a_call_that_does_not_end_is_given_up_after_the_grace_and_logged(
    engine, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(http, "GRACE_S", 0.1)
    settings = Settings(
        port=0, admin_port=0, log_dir=str(tmp_path), engine=(EngineSettings(url=engine.url),)
    )
    engine.answer = engine.stream(CHUNK, DONE)
    engine.release()
    facts = asyncio.Queue()
    async with aiohttp.ClientSession() as session, asyncio.timeout(LIMIT_S):
        async with service.running(settings, (facts.put_nowait,)) as live:
            while not isinstance((await facts.get()).event, InstanceJoined):
                pass
            body = {"model": "tiny", "messages": [], "stream": True}
            response = await session.post(live.url + CHAT, json=body)
            assert await response.content.readany() == CHUNK
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
        await engine.until(lambda: engine.lost == 1)

    assert len(live.brain.balancer.ledger) == 0
    *_, call, workflow = [record.event for record in read_facts(tmp_path)]
    assert isinstance(call, Cancelled)
    assert isinstance(workflow, WorkflowEnded)


async def test_what_breaks_inside_ends_it_in_good_order(engine):
    settings = Settings(port=0, admin_port=0, engine=(EngineSettings(url=engine.url),))

    async def broken():
        async with service.running(settings) as live:
            reader, writer = await asyncio.open_connection("127.0.0.1", live.url.rpartition(":")[2])
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            connections.append((reader, writer))
            raise RuntimeError

    connections = []
    with pytest.raises(RuntimeError):
        await broken()
    ((reader, writer),) = connections
    async with asyncio.timeout(LIMIT_S):
        await reader.read()  # until it is closed
    writer.close()
    await writer.wait_closed()


async def test_options_come_from_the_file_and_the_environment_too(serve, session, engine, tmp_path):
    file = tmp_path / "kairos.toml"
    file.write_text(
        "max_body_bytes = 100\nmax_waiting = 7\n"
        f'[[engine]]\nurl = "{engine.url}"\napi_key_env = "ENGINE_KEY"\nmax_num_seqs = 3\n'
        f'[[key]]\nsha256 = "{sha256(b"right").hexdigest()}"\ntenant = "acme"\n'
    )
    served = await serve("--config", str(file), ENGINE_KEY="secret", KAIROS_MAX_BODY_BYTES="200")
    await joined(session, served)
    async with session.get(served.admin_url + "/admin/status") as response:
        (instance,) = (await response.json())["instances"].values()
    assert instance["max_num_seqs"] == 3
    assert (await chat(session, served))[0] == 401

    session.headers["Authorization"] = "Bearer right"
    assert (await chat(session, served))[0] == 200
    assert (await chat(session, served, more="x" * 100))[0] == 200
    assert (await chat(session, served, more="x" * 200))[0] == 413
    assert engine.calls[0].headers["authorization"] == "Bearer secret"


async def test_the_log_of_a_run_replays_to_the_same_decisions(serve, session, engines, tmp_path):
    first, second = await engines(), await engines()
    served = await serve(
        "--engine", f"{first.url},max_num_seqs=1", "--engine", f"{second.url},max_num_seqs=2",
        "--log", str(tmp_path),
    )  # fmt: skip
    await both_joined(session, served)
    for engine in (first, second):
        engine.answer = engine.when_released
    calls = [asyncio.create_task(chat(session, served, max_tokens=n)) for n in range(1, 13)]
    await first.called()
    await second.called(2)
    assert (await chat(session, served, model="huge"))[0] == 404
    calls.pop().cancel()
    for engine in (first, second):
        engine.release(20)
    assert [(await call)[0] for call in calls] == [200] * 11
    await second.stop()
    assert {(await chat(session, served))[0] for _ in range(3)} <= {200, 503}
    served.signal(signal.SIGTERM)
    assert (await served.ended())[0] == 0

    records = list(read_facts(tmp_path))
    balancer = Balancer(POLICIES[Settings().policy], PLACEMENTS["least-kv"])
    replayed = [tuple(balancer.handle(record.event, record.at)) for record in records]
    assert replayed == [record.commands for record in records]
    assert len([command for commands in replayed for command in commands]) >= 14
    assert {type(record.event) for record in records} >= {Arrived, Finished, InstanceJoined}
    assert balancer.waiting == len(balancer.ledger) == 0
    assert "Hello" not in "".join(path.read_text() for path in tmp_path.iterdir())


async def test_a_call_that_a_killed_gateway_had_is_lost_in_the_log_once_another_has_started(
    serve, session, engine, tmp_path
):
    engine.answer = engine.when_released
    options = "--engine", f"{engine.url},max_num_seqs=1", "--log", str(tmp_path)

    def told(kind):
        return [each.event for each in read_facts(tmp_path) if type(each.event) is kind]

    async def until_told(kind, number):
        async with asyncio.timeout(LIMIT_S):
            while len(told(kind)) < number:
                await asyncio.sleep(0.05)

    served = await serve(*options)
    await joined(session, served)
    call = asyncio.create_task(chat(session, served))
    await until_told(Arrived, 1)
    served.signal(signal.SIGKILL)
    with pytest.raises(aiohttp.ClientError):
        await call
    assert told(Failed) == []
    await serve(*options)
    await until_told(Started, 2)
    [arrived], [lost] = told(Arrived), told(Failed)
    assert lost == Failed(arrived.request.id, "lost_at_restart")


async def both_joined(session, served):
    async with asyncio.timeout(LIMIT_S):
        while True:
            async with session.get(served.admin_url + "/admin/status") as response:
                if len((await response.json())["instances"]) == 2:
                    return
            await asyncio.sleep(0.02)


@pytest.fixture
def configured(tmp_path):
    """`configured(LINE, ...)` writes the file again; and where it is."""
    file = tmp_path / "kairos.toml"

    def write(*lines):
        file.write_text("\n".join(lines))
        return str(file)

    return write


def named(engine, **given):
    options = [f"{name} = {value}" for name, value in given.items()]
    return "\n".join(["[[engine]]", f'url = "{engine.url}"', *options])


def key(text):
    return f'[[key]]\nsha256 = "{sha256(text).hexdigest()}"\ntenant = "acme"'


async def test_on_a_hangup_the_file_is_read_again_and_calls_run_on(
    serve, session, engines, configured
):
    first, second = await engines(), await engines()
    served = await serve("--config", configured(named(first), key(b"old")))
    await joined(session, served)
    first.answer = first.when_released
    session.headers["Authorization"] = "Bearer old"
    running = asyncio.create_task(chat(session, served))
    await first.called()

    configured("max_body_bytes = 500", "max_wait_s = 5", named(second, max_num_seqs=9), key(b"new"))
    served.signal(signal.SIGHUP)

    await served.said("the settings were read again; changed: max_body_bytes, engine, key")
    await served.said("needs a restart, and stays as it was: max_wait_s\n")
    await served.said(f"{second.url[7:]} serves tiny: at most 9 calls at once")
    assert (await chat(session, served))[0] == 401
    session.headers["Authorization"] = "Bearer new"
    assert (await chat(session, served))[0] == 200
    assert (await chat(session, served, more="x" * 500))[0] == 413
    assert len(second.calls) == 1
    assert f'"draining":{{"{first.url[7:]}":1}}' in await status(session, served)
    first.release()
    assert (await running)[0] == 200
    await served.said(f"instance {first.url[7:]} is gone")


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["port = x"], "Invalid value (at line 1, column 8)"),
        (["max_waiting = 0", "[[engine]]", 'url = "http://h:1"'], "max_waiting must be at least 1"),
        ([""], "name at least one engine: kairos serve --engine http://HOST:PORT"),
        (['[[engine]]\nurl = "http://h:1"\napi_key_env = "NO_KEY"'], "NO_KEY is not set"),
        (["a = " + "[" * 5000], "recursion"),
        (["port = " + "9" * 5000], "digits"),
    ],
)
async def test_a_file_that_is_wrong_changes_nothing_and_is_said(
    serve, session, engine, configured, lines, problem
):
    served = await serve("--config", configured(named(engine), key(b"old")))
    await joined(session, served)
    configured(key(b"new"), *lines) if lines == [""] else configured(*lines)
    served.signal(signal.SIGHUP)
    assert problem in await served.said("the settings stay as they are: ")
    session.headers["Authorization"] = "Bearer old"
    assert (await chat(session, served))[0] == 200

    configured(named(engine), key(b"new"))
    served.signal(signal.SIGHUP)
    await served.said("the settings were read again; changed: key\n")
    assert (await chat(session, served))[0] == 401


async def test_engines_of_the_command_line_win_over_those_of_a_file_that_is_read_again(
    serve, session, engines, configured
):
    first, second = await engines(), await engines()
    file = configured(key(b"a"))
    served = await serve("--config", file, "--engine", first.url)
    await joined(session, served)
    configured(named(second), key(b"a"))
    served.signal(signal.SIGHUP)
    await served.said("the settings were read again; changed: nothing\n")
    session.headers["Authorization"] = "Bearer a"
    assert (await chat(session, served))[0] == 200
    assert len(first.calls) == 1


async def test_without_keys_any_more_it_says_that_anybody_may_call(
    serve, session, engine, configured
):
    served = await serve("--config", configured(named(engine), key(b"a")))
    await joined(session, served)
    configured(named(engine))
    served.signal(signal.SIGHUP)
    await served.said("no API keys are configured any more: anyone who reaches it may call\n")
    assert (await chat(session, served))[0] == 200


def keys(*arguments):
    """What `kairos keys` prints."""
    status, printed, said = forked.run("kairos.cli.main", "keys", *arguments)
    assert status == 0, said
    return printed.strip()


async def test_a_file_of_keys_is_read_again_on_a_hangup(
    serve, session, engine, configured, tmp_path
):
    file = str(tmp_path / "keys.toml")
    first = keys("create", "--tenant", "acme", "--name", "first", file)
    served = await serve("--config", configured(f'keys_path = "{file}"', named(engine)))
    await joined(session, served)

    async def with_key(key):
        session.headers["Authorization"] = f"Bearer {key}"
        status, said = await chat(session, served)
        return status if status == 200 else (status, said.decode())

    assert (await chat(session, served))[0] == 401
    assert await with_key(first) == 200
    second = await asyncio.to_thread(keys, "create", "--tenant", "other", "--name", "b", file)
    third = await asyncio.to_thread(keys, "rotate", "first", "--grace", "0s", file)
    for key in (second, third):
        assert (await with_key(key))[0] == 401
    assert await with_key(first) == 200
    served.signal(signal.SIGHUP)
    await served.said("the settings were read again; changed: key\n")
    assert [await with_key(key) for key in (second, third)] == [200, 200]
    status, said = await with_key(first)
    assert status == 401
    assert "this API key has expired" in said

    whole = (tmp_path / "keys.toml").read_text()
    (tmp_path / "keys.toml").write_text(whole + "[[key]]\n")
    served.signal(signal.SIGHUP)
    await served.said(f"the settings stay as they are: {file}: Object missing required field")
    assert await with_key(second) == 200

    (tmp_path / "keys.toml").write_text(whole)
    for name in ("first", "b", sha256(first.encode()).hexdigest()[:8]):
        await asyncio.to_thread(keys, "revoke", name, file)
    served.signal(signal.SIGHUP)
    await served.said("the settings were read again; changed: key\n")
    for key in (first, second, third):
        status, said = await with_key(key)
        assert status == 401
        assert "this API key is not known here" in said


async def test_a_file_of_keys_alone_can_be_read_again_too(serve, session, engine, tmp_path):
    file = str(tmp_path / "keys.toml")
    first = keys("create", "--tenant", "acme", "--name", "first", file)
    served = await serve("--engine", engine.url, KAIROS_KEYS_PATH=file)
    await joined(session, served)
    await asyncio.to_thread(keys, "revoke", "first", file)
    served.signal(signal.SIGHUP)
    await served.said("the settings were read again; changed: key\n")
    session.headers["Authorization"] = f"Bearer {first}"
    assert (await chat(session, served))[0] == 401


async def test_without_a_file_a_hangup_has_nothing_to_read(serve, session, engine):
    served = await serve("--engine", engine.url)
    await joined(session, served)
    served.signal(signal.SIGHUP)
    await served.said(
        "there is nothing to read again: it was started without --config, keys_path and TLS\n"
    )
    assert (await chat(session, served))[0] == 200


async def test_a_hangup_while_it_starts_does_not_end_it(serve, session, engine):
    served = await serve("--engine", engine.url, program=HUNG_UP_EARLY)
    await joined(session, served)
    assert (await chat(session, served))[0] == 200
