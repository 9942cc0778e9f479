"""`make vllm`'s command, on a program in vLLM's place: what it is given, and that it ends whole."""

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from kairos.cli.demos.engines import start_engines
from kairos.core import SetupError
from kairos.host import start_child
from tests.support.ports import free_ports
from tests.support.processes import Process
from tests.support.vllm import descendants, until_gone

# Does what matters here: has a core, options, a temporary directory, and processes of its own.
SERVER = """
import http.server, json, os, pathlib, signal, subprocess, sys, time

if sys.argv[1].endswith("tiny_model.py"):
    sys.exit(pathlib.Path(sys.argv[3]).mkdir())
options = dict(zip(sys.argv, sys.argv[1:]))  # the last of each name wins
if "--fails" in options:
    print("(EngineCore pid=7) ERROR 01-01 00:00:00 [core.py:1] ValueError: too small.")
    sys.exit("RuntimeError: see above")
worker = subprocess.Popen(["sleep", "1000"])
if "--ends-slowly" in options:
    signal.signal(signal.SIGTERM, lambda *_: time.sleep(2.5) or os._exit(0))


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        told = {"cores": sorted(os.sched_getaffinity(0)), "options": options}
        told |= {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
        told |= {"bind": os.environ.get("VLLM_CPU_OMP_THREADS_BIND")}
        told |= {"scratch": os.environ["TMPDIR"]}
        self.wfile.write(json.dumps(told).encode())

    def do_DELETE(self):
        os._exit(3)

    def log_message(self, *_):
        pass


http.server.HTTPServer((options["--host"], int(options["--port"])), Handler).serve_forever()
"""


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    """A virtual environment, as far as we look into one, with that program as its Python."""
    (tmp_path / "server.py").write_text(SERVER)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -P ] && shift\nexec {sys.executable} {tmp_path}/server.py "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.setenv("KAIROS_VLLM", str(tmp_path))
    return tmp_path


async def ask(url, method="GET"):
    """What an instance tells of itself."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{method} /health HTTP/1.0\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return json.loads(answer.partition(b"\r\n\r\n")[2] or "null")


async def test_each_instance_has_a_core_and_a_port_and_options_win_over_ours():
    first = free_port_before_another()
    options = ("--model", "small", "--port", str(first), "--block-size", "64")
    async with start_engines("vllm", 2, options=options) as urls:
        told = [await ask(url) for url in urls]
        assert all(Path(each["scratch"]).is_dir() for each in told)

    cores = sorted(os.sched_getaffinity(0))
    assert urls == [f"http://127.0.0.1:{first + number}" for number in (0, 1)]
    assert [each["cores"] for each in told] == [[cores[0]], [cores[1 % len(cores)]]]
    assert [each["bind"] for each in told] == [str(each["cores"][0]) for each in told]
    for each in told:
        assert each["options"]["--model"] == f"{each['scratch']}/small"
        assert each["options"]["--served-model-name"] == "small"
        assert each["options"]["--block-size"] == "64"
        assert not Path(each["scratch"]).exists()


async def test_an_instance_with_a_gpu_has_all_cores_and_nothing_that_a_cpu_needs():
    options = ("--gpu", "--model", "llama3-8b", "--kv-cache-memory-bytes", "8G")
    async with start_engines("vllm", 1, options=options) as urls:
        told = await ask(urls[0])
    assert told["cores"] == sorted(os.sched_getaffinity(0))
    assert told["bind"] is None
    assert told["options"]["--kv-cache-memory-bytes"] == "8G"
    assert told["options"]["--load-format"] == "dummy"
    assert not {"--enforce-eager", "--num-gpu-blocks-override", "--gpu"} & set(told["options"])


async def test_instances_of_a_machine_with_several_gpus_have_one_each(monkeypatch):
    options = ("--own-gpu", "--model", "llama3-8b")
    async with start_engines("vllm", 2, options=options) as urls:
        told = [await ask(url) for url in urls]
    assert [each["gpus"] for each in told] == ["0", "1"]
    assert "--enforce-eager" not in told[0]["options"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    with pytest.raises(SetupError, match="is 5: there is no GPU for instance 2"):
        async with start_engines("vllm", 2, options=options):
            pytest.fail("the block must not run")


async def test_a_model_of_ones_own_is_a_directory_and_has_its_own_weights(tmp_path):
    model = tmp_path / "reasoner"
    model.mkdir()
    with pytest.raises(SetupError, match=r"no model .*reasoner': there are tiny, .*config"):
        async with start_engines("vllm", 1, options=("--model", str(model))):
            pytest.fail("the block must not run")
    (model / "config.json").write_text("{}")
    async with start_engines("vllm", 1, options=("--model", str(model))) as urls:
        told = await ask(urls[0])
    assert told["options"]["--model"] == str(model)
    assert told["options"]["--served-model-name"] == "reasoner"
    assert "--load-format" not in told["options"]


def free_port_before_another():
    while True:
        (port,) = free_ports(1)
        try:
            with socket.create_server(("127.0.0.1", port + 1)):
                return port
        except OSError:
            continue


async def test_what_vllm_complained_of_first_is_told():
    with pytest.raises(SetupError, match=r"with status 1: ValueError: too small\.; RuntimeE"):
        async with start_engines("vllm", 1, options=("--fails", "yes")):
            pytest.fail("the block must not run")


async def test_a_port_that_is_taken_is_told():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(SetupError, match=f"port {port} cannot be used: Address already in"):
            async with start_engines("vllm", 1, options=("--port", str(port))):
                pytest.fail("the block must not run")


async def test_without_a_vllm_it_says_how_to_get_one(environment, monkeypatch):
    monkeypatch.setenv("KAIROS_VLLM", str(environment / "nothing"))
    with pytest.raises(SetupError, match=r"there is no vLLM in .*nothing: run 'make install-v"):
        async with start_engines("vllm", 1):
            pytest.fail("the block must not run")


async def test_an_engine_that_ends_is_told_of_and_leaves_nothing():
    failures, others = asyncio.Queue(), descendants(os.getpid())  # of other tests
    async with start_engines("vllm", 2, on_failure=failures.put_nowait) as urls:
        before = descendants(os.getpid()) - others
        await ask(urls[0], "DELETE")
        async with asyncio.timeout(60):
            failure = await failures.get()
        assert failure.startswith("vllm engine 1 has ended: error: vLLM ended with status 3:")
        assert await ask(urls[1])
        after = descendants(os.getpid()) - others
        assert len(after) == len(before) / 2
    await until_gone(before)
    assert failures.empty()  # those that are ended on purpose have not failed


def command(directory):
    return Process(directory, "vllm", "--port", 0, module="scripts.vllm_engines")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_the_command_ends_whole_however_it_is_ended(number, tmp_path):
    with command(tmp_path) as process:
        await process.until_it_says("all are ready")
        assert "kairos serve --engine http://127.0.0.1:" in process.said
        started = descendants(process.pid)
        assert len(started) >= 6  # for each: ours, vLLM's, and what that started
        os.kill(process.pid, number)
        await until_gone(started)
        if number != signal.SIGKILL:
            await process.until_it_says(" s  ended")
            assert process.wait() == 0


async def test_the_command_ends_in_order_with_what_started_it():
    shell = await start_child(
        *("sh", "-c", f"{sys.executable} -m scripts.vllm_engines --port 0 --ends-slowly yes; true"),
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        while b"kairos serve" not in (line := await shell.stdout.readline()):
            pass
    told = await ask(line.split()[-1].decode())
    started = descendants(shell.pid)
    shell.kill()
    try:
        await until_gone(started)
        assert not Path(told["scratch"]).exists()
    finally:
        for pid in started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await shell.communicate()


async def test_the_command_fails_when_an_instance_ends(tmp_path):
    with command(tmp_path) as process:
        await process.until_it_says("all are ready")
        started = descendants(process.pid)
        url = process.said.split()[-1]
        await ask(url, "DELETE")
        await until_gone(started)
        assert process.wait() == 1
        assert "vllm: vllm engine 2 has ended: error: vLLM ended with status 3" in process.said
