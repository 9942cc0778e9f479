"""A batch of an unchanged `openai` client, while each kind of process is killed (SIGKILL) and the
broker is away.

`python -m tests.acceptance.batch_kills kafka --lines 10000`; `workers` for one host.

The blows are spread over the lines: each falls when so many have ended. So none falls on a batch
that is over, however fast the machine is.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import openai

from tests.acceptance import batch_verdict
from tests.acceptance.batch_deployments import SEED, Deployment, OnKafka, OnOneHost
from tests.soak import verdict

LINES = 10_000
CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
RETRIES = 30  # of the client, each after at most 8 s
LIMIT_S = 300.0  # for what is left after a blow
REST_S = 60.0
LOOK_S = 0.2


class BatchKills:
    """One run."""

    def __init__(
        self,
        deployment: Deployment,
        *,
        lines: int,
        show: Callable[[str], None],
        blows: Sequence[str] | None = None,
    ) -> None:
        """`blows`: which of them; None: all."""
        self._deployment, self._show = deployment, show
        self._blows = [*deployment.blows] if blows is None else [*blows]
        self._bodies = {f"doc-{number}": _body(number) for number in range(lines)}
        self._ended: Any = None
        self._seconds = 0.0
        self._late: list[str] = []

    async def run(self) -> list[str]:
        """Run to the end. Returns what does not hold."""
        await self._deployment.start()
        url = f"{self._deployment.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=RETRIES) as client:
            began = time.monotonic()
            batch = await self._begin(client)
            for number, what in enumerate(self._blows, 1):
                share = number / (len(self._blows) + 1)
                seen = await self._until(client, batch.id, int(share * len(self._bodies)))
                if seen == len(self._bodies):
                    self._late.append(f"the batch was over before this: {what} dies")
                self._show(f"{time.monotonic() - began:5.0f} s, {seen} lines: {what} dies")
                await self._deployment.blows[what]()
            await self._until(client, batch.id, None)
            self._seconds = time.monotonic() - began
            self._ended = await client.batches.retrieve(batch.id)
            if self._ended.output_file_id is None:
                return [*batch_verdict.of_batch(self._ended, len(self._bodies))]
            content = await client.files.content(self._ended.output_file_id)
        return [*self._judge(content.text), *await self._at_rest()]

    async def _begin(self, client: openai.AsyncOpenAI) -> Any:
        lines = (
            json.dumps({"custom_id": name, "method": "POST", "url": CHAT, "body": body})
            for name, body in self._bodies.items()
        )
        content = "\n".join(lines).encode()
        file = await client.files.create(file=("input.jsonl", content), purpose="batch")
        return await client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h"
        )

    async def _until(self, client: openai.AsyncOpenAI, name: str, lines: int | None) -> int:
        """So many have ended, or the batch has. Returns how many. Nobody waits between two looks
        for as long as the client would: the next blow would fall late."""
        looking = client.with_options(max_retries=0)
        async with asyncio.timeout(LIMIT_S):
            while True:
                await asyncio.sleep(LOOK_S)
                try:
                    batch = await looking.batches.retrieve(name)
                except (openai.APIConnectionError, openai.InternalServerError):
                    continue  # what serves it is dead, and comes back
                counts = batch.request_counts
                done = 0 if counts is None else counts.completed + counts.failed
                is_open = batch.status in ("validating", "in_progress", "finalizing")
                if not is_open or (lines is not None and done >= lines):
                    return done

    def _judge(self, content: str) -> list[str]:
        output = [json.loads(line) for line in content.splitlines()]
        lines = [batch_verdict.expected(name, body, SEED) for name, body in self._bodies.items()]
        return [
            *self._late,
            *batch_verdict.of_batch(self._ended, len(lines)),
            *batch_verdict.of_output(lines, output),
        ]

    async def _at_rest(self) -> list[str]:
        """No room in an engine is lost."""
        try:
            async with asyncio.timeout(REST_S):
                while not await self._deployment.is_at_rest():
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            return ["something waits or runs, or an engine is left out, after the batch has ended"]
        return []

    def summary(self) -> str:
        counts = self._ended.request_counts
        again = batch_verdict.in_vain(self._deployment.facts(), self._ended.id)
        return (
            f"{counts.total} lines in {self._seconds:.0f} s, {len(self._blows)} blows: "
            f"{counts.completed} answered, {counts.failed} failed; {again} answers in vain"
        )


def _body(number: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Summarise document {number}."}]
    return {"model": "standin", "messages": messages, "max_tokens": 16}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.batch_kills")
    parser.add_argument("on", choices=["kafka", "workers"])
    parser.add_argument("--lines", type=int, default=LINES)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="kairos-batch-"))
    kind = OnKafka if options.on == "kafka" else OnOneHost
    with kind(directory) as deployment:
        run = BatchKills(deployment, lines=options.lines, show=print)
        wrong = asyncio.run(run.run())
        verdict.conclude(run.summary(), wrong, directory)


if __name__ == "__main__":
    main()
