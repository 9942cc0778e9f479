"""Runs in this process and on Ray, before an engine that counts what it is asked."""

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager

from aiohttp import web

from kairos.workflows import Functions
from tests.e2e.cli.flow_runs import answer_to
from tests.support.workflows.runs import RunStore, check_task, new_record, run_task


class CountingEngine:
    """`answer` makes a text of a request's messages; ValueError: it refuses."""

    def __init__(self, answer=None, delay_s=0.0):
        self.answer, self.delay_s = (
            answer or (lambda messages: answer_to({"messages": messages})),
            delay_s,
        )
        self.asked = Counter()  # of those with an answer, by temperature and messages
        self.calls = 0
        self.answers = asyncio.Event()  # while it is not set, calls get none
        self.answers.set()
        self.url = ""

    async def handle(self, request):
        if request.method != "POST":
            return web.json_response({"data": [{"id": "tiny"}]})
        if not request.path.endswith("/chat/completions"):
            return web.Response(status=404)  # as a server that is no Kairos
        body = json.loads(await request.read())
        self.calls += 1
        try:
            text = self.answer(body["messages"])
        except ValueError as error:
            return web.json_response({"error": {"message": str(error)}}, status=400)
        self.asked[json.dumps([body.get("temperature"), body["messages"]])] += 1
        await asyncio.sleep(self.delay_s)
        await self.answers.wait()
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 10, "completion_tokens": 2}
        return web.json_response(
            {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
        )

    def again(self):
        """Return how often deterministic calls were asked a second time."""
        return sum(n - 1 for call, n in self.asked.items() if not json.loads(call)[0])

    @asynccontextmanager
    async def running(self):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


class Outcome:
    def __init__(self, record, out):
        self.record = record
        self.out = out.read_bytes() if out.exists() else b""
        errors = out.with_name(f"{out.stem}.errors{out.suffix}")
        self.errors = errors.read_bytes() if errors.exists() else b""

    @property
    def tables(self):
        return self.out, self.errors


async def run(folder, declaration, rows, name, functions=None, **fields):
    """Run it in a place of its own, to the end."""
    store, out = RunStore(folder / name), folder / f"{name}.jsonl"
    record = new_record(store, declaration, out=str(out), **fields)
    task = check_task(record, declaration, functions or Functions(), rows)
    record = await run_task(task, store, lambda _: None, lambda _: None)
    return Outcome(record, out)
