"""Client of processors that are separate services, for processes that run flows.

A task is sent to a processor that holds a value it needs, else to the one with the fewest tasks of
this process. An unreachable processor is skipped for a moment, and its unfinished and failed tasks
are sent to another: every task of a processor may be repeated.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import aiohttp
import msgspec

from kairos.core import KairosError, SetupError, Unavailable, UpstreamFailed
from kairos.proxy import headers_with
from kairos.settings import RetrievalSettings
from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.operators import Embedding, Rerank
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.execute.commands import DropHeld, RunProcessor
from kairos.workflows.execute.facts import Stays
from kairos.workflows.remote.links import ProcessorLink, watched_socket
from kairos.workflows.retrieve.collections import DEFAULT_TENANT
from kairos.workflows.retrieve.engine_pool import PATIENCE_S
from kairos.workflows.retrieve.lost import ValuesLost

_CONNECT_S, _ANSWER_S = 5.0, 900.0  # its engines may be away for as long as it waits for them
_AGAIN_S = 0.5  # until unreachable processors are tried again
_LOOK_EVERY_S = 1.0  # polls of processors that have not answered yet
_APART = (
    "processors keep collections in different places, so one would not find what another stored: "
    "keep them at one processor, or all in one PostgreSQL"
)
log = logging.getLogger(__name__)


class RemoteProcessors:
    """Processors shared by all flows of this process."""

    def __init__(self, links: Sequence[ProcessorLink]) -> None:
        self._links = links
        self._ending: set[asyncio.Task[None]] = set()
        self._left_until_s: dict[str, float] = {}  # by place
        self._said: dict[str, str] = {}  # by place, why it is not used

    def of(
        self, *, began_at: int = 0, tenant: str = DEFAULT_TENANT, run: str | None = None
    ) -> "RemoteFlow":
        """Return processors for a flow of a tenant.

        `run`: the run that values are held for, so that a resumed run finds them; None: a new one.
        """
        return RemoteFlow(self, began_at, tenant, run or secrets.token_hex(16))

    @property
    def models(self) -> dict[str, Sequence[str]]:
        found: dict[str, set[str]] = {}
        for about in (each.about for each in self._links if each.about is not None):
            for kind, names in about.models.items():
                found.setdefault(kind, set()).update(names)
        return {kind: sorted(names) for kind, names in found.items()}

    @property
    def keeps_collections(self) -> bool:
        return any(each.about is not None and each.about.collections for each in self._links)

    async def look(self) -> None:
        """Poll all processors.

        Raises:
            SetupError: none can be reached, or they keep different collections.
        """
        looks = (each.look() for each in self._links)
        found = await asyncio.gather(*looks, return_exceptions=True)
        problems = [each for each in found if isinstance(each, BaseException)]
        for each in problems:
            if not isinstance(each, Unavailable):
                raise each
        if len(problems) == len(found):
            raise SetupError("; ".join(str(each) for each in problems))
        if not self._go_together():
            raise SetupError(_APART)

    async def keep_looking(self) -> None:
        """Poll processors that were not there yet, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            await asyncio.gather(*(self._see(each) for each in self._links if each.about is None))

    async def _see(self, link: ProcessorLink) -> None:
        try:
            await link.look()
            problem = None if self._go_together() else _APART
        except KairosError as error:
            problem = str(error)
        if problem is None:
            self._said.pop(link.place, None)
            return
        link.about = None
        if self._said.get(link.place) != problem:  # once
            self._said[link.place] = problem
            log.warning("the processor %s is not used: %s", link.place, problem)

    def _go_together(self) -> bool:
        """Return whether all known processors keep the same collections, if any."""
        kept = {each.about.collections for each in self._links if each.about is not None}
        return len(kept - {None}) <= 1

    def able(self, command: RunProcessor) -> list[ProcessorLink]:
        """Return the processors that can do a command, as far as known."""
        return [each for each in self._links if _can(each, command)]

    async def do(
        self, command: RunProcessor, run: str, tenant: str, began_at: int
    ) -> tuple[ProcessorLink, msgspec.Raw | int]:
        """Perform a command; return its processor, and the value or the bytes held there.

        Raises:
            ValuesLost: a value that it needs is gone.
            KairosError: as `ProcessorLink.ask`.
        """
        known = {each.place for each in self._links}
        if gone := [each for each, place in command.held.items() if place not in known]:
            raise ValuesLost(gone)  # the run had other processors when it began
        until_s, failed = time.monotonic() + PATIENCE_S, set[str]()
        while True:
            link = await self._chosen(command, until_s, failed)
            try:
                reply = await link.ask(run, tenant, began_at, command)
            except (Unavailable, UpstreamFailed) as error:
                failed.add(link.place)
                is_there = isinstance(error, UpstreamFailed)  # and may do other work
                if not is_there:
                    self._left_until_s[link.place] = time.monotonic() + _AGAIN_S
                # One that hangs may use up all the time: the others are asked all the same.
                is_over = is_there or time.monotonic() > until_s
                if is_over and failed.issuperset(each.place for each in self._there(command)):
                    raise
                continue
            if reply.lost:
                raise ValuesLost(reply.lost)
            return link, reply.value if reply.held_bytes is None else reply.held_bytes

    async def _chosen(
        self, command: RunProcessor, until_s: float, failed: Container[str]
    ) -> ProcessorLink:
        """Wait for a processor that can do the command.

        `failed`: tried only if no other is there.
        """
        while True:
            if able := self._there(command):
                has = set(command.held.values())
                return min(
                    able,
                    key=lambda each: (each.place in failed, each.place not in has, each.in_hand),
                )
            if time.monotonic() > until_s:
                raise Unavailable(f"no processor for operators of kind {command.kind} is available")
            await asyncio.sleep(_AGAIN_S / 5)

    def _there(self, command: RunProcessor) -> list[ProcessorLink]:
        """Return the processors that can do a command and are not skipped now."""
        now_s, left = time.monotonic(), self._left_until_s
        return [each for each in self.able(command) if left.get(each.place, 0.0) <= now_s]

    def drop(self, run: str, place: str, value_id: str) -> None:
        for each in self._links:
            if each.place == place:
                each.drop(run, value_id)

    def end(self, run: str, places: set[str]) -> None:
        """Drop all values of a run; unreachable processors forget them in time."""
        task = asyncio.create_task(self._end(run, places))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _end(self, run: str, places: set[str]) -> None:
        told = [each.drop_run(run) for each in self._links if each.place in places]
        await asyncio.gather(*told, return_exceptions=True)


class RemoteFlow:
    """Processors for one flow, or one run of it.

    Has the methods of `FlowProcessors`, but values stay with their processor.
    """

    keeps_values = True
    waits_for: Sequence[str] = ()  # separate services do not report it

    def __init__(self, service: RemoteProcessors, began_at: int, tenant: str, run: str) -> None:
        self._service, self._began_at, self._tenant, self._run = service, began_at, tenant, run
        self._places: set[str] = set()  # processors that hold values

    @property
    def models(self) -> Mapping[str, Sequence[str]]:
        return self._service.models

    @property
    def keeps_collections(self) -> bool:
        return self._service.keeps_collections

    async def run(self, command: RunProcessor) -> object:
        """Carry out a command: see `Processors` in `run/processing.py`."""
        self._places.update(command.held.values())
        link, value = await self._service.do(command, self._run, self._tenant, self._began_at)
        if not isinstance(value, int):
            return msgspec.json.decode(value)
        self._places.add(link.place)
        return Stays(link.place, value)

    def drop(self, command: DropHeld) -> None:
        self._places.add(command.place)
        self._service.drop(self._run, command.place, command.value_id)

    def end(self) -> None:
        if self._places:
            self._service.end(self._run, self._places)

    def check_models(self, plan: Plan) -> None:
        """Raise SetupError if an operator names a model that, as far as known, none serves."""
        for operator in every_operator(plan.declaration.operators):
            if not isinstance(operator.params, Embedding | Rerank) or not operator.params.model:
                continue
            served = self.models.get(operator.kind, ())
            if served and operator.params.model not in served:
                raise SetupError(
                    f"operator '{operator.name}': no processor serves the model "
                    f"'{operator.params.model}'; served: {', '.join(served)}"
                )


@asynccontextmanager
async def remote_processors(
    settings: RetrievalSettings, environ: Mapping[str, str]
) -> AsyncIterator[RemoteProcessors]:
    """Yield processors, ready for use.

    Raises:
        SetupError: none can be reached, a key is missing, or they keep different collections.
    """
    if settings.embedders or settings.rerankers or settings.collections is not None:
        raise SetupError(
            "processors replace embedders, rerankers and collections: configure these on them"
        )
    settings.check_keys(environ)
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S, sock_connect=_CONNECT_S)
    connector = aiohttp.TCPConnector(limit=0, socket_factory=watched_socket)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        found = RemoteProcessors(list(_links(session, settings, environ)))
        await found.look()
        looking = asyncio.create_task(found.keep_looking())
        try:
            yield found
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            await found.close()


def _links(
    session: aiohttp.ClientSession, settings: RetrievalSettings, environ: Mapping[str, str]
) -> Iterable[ProcessorLink]:
    for each in settings.processor_services:
        headers = headers_with(environ[each.api_key_env] if each.api_key_env else None)
        yield ProcessorLink(session, each.id, each.base_url, headers)


def _can(link: ProcessorLink, command: RunProcessor) -> bool:
    about, kind = link.about, command.kind
    if about is None:
        return False
    if kind in ("embed", "rerank"):
        served = about.models.get(kind)
        return served is not None and (not command.model or not served or command.model in served)
    collection = command.arguments.get("collection")
    is_named = isinstance(collection, str) and not collection.startswith("held:")
    return about.collections is not None or not is_named
