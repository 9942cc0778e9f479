"""The one actor of a run that all of its partitions ask.

It gives them their share of the engines, counts what the run may spend, and says who makes a call
that several of them want.
"""

import time
from contextlib import AsyncExitStack

from kairos.host import allow_many_connections, collect_less_often, switch_threads_often
from kairos.workflows.compile.operators import Declaration
from kairos.workflows.compile.pipeline import Passes, compile_plan
from kairos.workflows.execute.flights import ResultMemo
from kairos.workflows.ray.cluster import LOCAL, ray_module
from kairos.workflows.ray.messages import PartShare, PoolTold
from kairos.workflows.run.flow_run import declare_plan
from kairos.workflows.run.pool import OpenEngines, RunPool, default_model, no_engines, open_pool
from kairos.workflows.run.run_store import RunRecord

_ANSWERS_BYTES = 64 << 20  # of answers that others may be about to ask for

Claim = bytes | bool  # the answer; True: make the call; False: another partition makes it


class Coordinator:
    """Dies with the process that runs the workflow."""

    def __init__(self, record: RunRecord, keys: dict[str, str], open_engines: OpenEngines) -> None:
        self._record, self._keys, self._open_engines = record, keys, open_engines
        self._stack = AsyncExitStack()
        self._pool: RunPool | None = None
        self._epochs: dict[int, int] = {}
        self._active: set[int] = set()
        self._figures: dict[tuple[int, int, int], dict[str, int]] = {}
        self._claimed: dict[str, tuple[int, int]] = {}  # by signature: partition, epoch
        self._answers = ResultMemo[bytes](_ANSWERS_BYTES)
        self._calls_left, self._tokens_left = record.max_calls, record.max_tokens
        self._stops = False
        self._waited = 0
        allow_many_connections()
        collect_less_often()
        switch_threads_often()

    async def open(self, declaration: Declaration, asks_models: bool) -> PoolTold:
        """Open the pool of engines, and return its description.

        Raises:
            SetupError: No engine can be used, or a model is not served.
        """
        record = self._record
        # On a cluster partitions of other hosts call it; with a key that they alone have.
        host = None if record.on == LOCAL else ray_module().util.get_node_ip_address()
        opening = no_engines(record)
        if asks_models:
            opening = open_pool(record, self._keys, self._open_engines, host=host)
        pool = await self._stack.enter_async_context(opening)
        self._pool = pool
        plan = compile_plan(declaration, Passes(**record.passes))
        model = ""
        if asks_models:
            model = await default_model(pool.llm, record.model, plan.models)
            await declare_plan(pool.llm, record.flow, plan)
        url, key = pool.at
        return PoolTold(
            url,
            key,
            model,
            pool.capacity(),
            pool.kv_tokens,
            pool.instances,
            pool.caches_prefixes,
        )

    async def begin(self, partition: int, epoch: int) -> None:
        """A partition begins, or begins again: what it had claimed is anybody's."""
        self._epochs[partition] = epoch
        self._active.add(partition)
        for signature in [s for s, (p, e) in self._claimed.items() if p == partition and e < epoch]:
            del self._claimed[signature]

    async def beat(
        self,
        partition: int,
        epoch: int,
        stage: int,
        figures: dict[str, int],
        workflows: list[str],
    ) -> PartShare:
        """Take a partition's figures, and the workflows that have ended since the last time."""
        self._figures[stage, partition, epoch] = figures
        assert self._pool is not None, "it was opened before"
        for workflow in workflows:
            self._pool.on_workflow_end(workflow)
        return self._share()

    async def ended(
        self,
        partition: int,
        epoch: int,
        stage: int,
        figures: dict[str, int],
        workflows: list[str],
    ) -> None:
        """Take the last figures of a partition's stage."""
        await self.beat(partition, epoch, stage, figures, workflows)
        self._active.discard(partition)

    async def claim(
        self,
        partition: int,
        epoch: int,
        signatures: list[str],
        answers: list[tuple[str, bytes | None]],
    ) -> list[Claim]:
        """Take answers to calls, and return for each call whether the partition is to make it.

        The answer None: the call failed, and another partition may ask again.
        """
        for signature, answer in answers:
            self._claimed.pop(signature, None)
            if answer is not None:
                self._answers.put(signature, answer)
        return [self._claim(partition, epoch, each) for each in signatures]

    async def spend(self, tokens: int) -> bool:
        """Reserve a call and its tokens; False: the run has used what it may."""
        calls_left, tokens_left = self._calls_left, self._tokens_left
        if (calls_left is not None and calls_left < 1) or (
            tokens_left is not None and tokens_left < tokens
        ):
            self._stops = True
            return False
        if calls_left is not None:
            self._calls_left = calls_left - 1
        if tokens_left is not None:
            self._tokens_left = tokens_left - tokens
        return True

    async def give_back(self, tokens: int) -> None:
        """Take back tokens that a call did not use. Negative: it used more than were reserved."""
        if self._tokens_left is not None:
            self._tokens_left += tokens

    async def stop(self) -> None:
        """Let what is in flight end, in all partitions."""
        self._stops = True

    async def progress(self) -> tuple[dict[str, int], str]:
        """Return the figures of all partitions together, and why calls wait."""
        total: dict[str, int] = {"waited_for_others": self._waited}
        for figures in self._figures.values():
            for name, value in figures.items():
                total[name] = total.get(name, 0) + value
        return total, "" if self._pool is None else self._pool.waits_for(time.time())

    async def close(self) -> None:
        await self._stack.aclose()

    def _share(self) -> PartShare:
        assert self._pool is not None, "it was opened before"
        return PartShare(max(1, self._pool.capacity() // max(1, len(self._active))), self._stops)

    def _claim(self, partition: int, epoch: int, signature: str) -> Claim:
        if epoch < self._epochs.get(partition, epoch):
            return True  # a process that was replaced: nothing of it counts
        if (answer := self._answers.get(signature)) is not None:
            return answer[0]
        holder = self._claimed.setdefault(signature, (partition, epoch))
        self._waited += holder[0] != partition
        return holder == (partition, epoch)
