"""Runs of declared workflows: an engine that answers each prompt in its own way, always the same;
runs in the test's loop; and the command, as a process."""

import asyncio
import json
import os
import signal
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import msgspec
from aiohttp import web

from kairos.workflows import Functions
from tests.e2e.client import LIMIT_S
from tests.support.host import forked
from tests.support.workflows.declared import read_yaml
from tests.support.workflows.runs import RunStore, check_task, new_record, open_table, run_task

ROOT = Path(__file__).parents[3]


def answer_to(body):
    """What the engine says: a text that only this request has."""
    content = "".join(message["content"] for message in body["messages"])
    return "said " + sha256(content.encode()).hexdigest()[:12]


def prompt_of(call):
    return json.loads(call.body)["messages"][-1]["content"]


def completion(text, finish="stop"):
    return web.json_response(
        {
            "choices": [
                {"message": {"role": "assistant", "content": text}, "finish_reason": finish}
            ],
            "usage": {"prompt_tokens": 10, "completion_tokens": 2},
        }
    )


def answering(engine, says=answer_to, delay_s=0.0):
    """Let the engine answer so; count what it has been asked by now."""

    async def answer(request):
        body = json.loads(await request.read())
        await asyncio.sleep(delay_s)
        said = says(body)
        return said if isinstance(said, web.StreamResponse) else completion(said)

    engine.answer = answer
    return engine


def write_rows(path, rows):
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return path


def read_rows(path):
    return [row.values for row in open_table(path).rows()]


class Runs:
    """Runs in a directory, before an engine."""

    def __init__(self, directory, engine):
        self.directory, self.engine = directory, engine
        self.store = RunStore(directory / "kairos")
        self.notes = []
        self.functions = Functions()

    async def run(self, flow, rows, out="out.jsonl", *, watch=lambda _: None, **fields):
        """Of a flow in YAML over rows, or a table."""
        declaration = read_yaml(flow)
        fields = {"engines": (self.engine.url,)} | fields
        record = new_record(self.store, declaration, out=str(self.directory / out), **fields)
        return await self.go_on(record, flow, rows, watch=watch, directory=None)

    async def resume(self, record, flow, rows, **changed):
        record = msgspec.structs.replace(record, **changed)
        return await self.go_on(record, flow, rows, directory=self.store.find(record.id))

    async def go_on(self, record, flow, rows, *, directory, watch=lambda _: None):
        task = check_task(record, read_yaml(flow), self.functions, rows)
        return await run_task(task, self.store, self.notes.append, watch, directory=directory)

    def out(self, name="out.jsonl"):
        return read_rows(self.directory / name)

    def prompts(self):
        """What the engine was asked since the last time."""
        prompts = [prompt_of(call) for call in self.engine.calls]
        self.engine.calls.clear()
        return prompts


class Command:
    """`kairos` as a process."""

    def __init__(self, process):
        self.process = process
        self._said = b""

    async def until_it_says(self, text):
        async with asyncio.timeout(LIMIT_S):
            while text not in self._said.decode():
                more = await self.process.stdout.read(4096)
                assert more, self._said.decode()
                self._said += more

    async def end(self):
        """Its exit status, and all that it said."""
        said, _ = await self.process.communicate()
        return self.process.returncode, (self._said + said).decode()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)


@asynccontextmanager
async def command(directory, *arguments, module="kairos.cli.main", open_files=None, fresh=False):
    """Runs `kairos ...` with its runs kept in the directory; killed in the end. `open_files`: that
    it may have, unless it raises that limit. `fresh`: as a Python of its own, not as a fork."""
    process = await forked.start(
        module,
        *arguments,
        fresh=fresh,
        open_files=open_files,
        cwd=directory,
        env=os.environ | {"KAIROS_RUNS": str(directory / "kairos"), "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield Command(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def kairos_command(directory, *arguments, **options):
    async with command(directory, *arguments, **options) as started:
        return await started.end()
