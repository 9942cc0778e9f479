"""Processors of a run on Ray as actors, one for each model, and heavy functions as tasks.

All partitions ask the actor of a model, so that its batches mix their rows (Ayo's engine scheduler,
one for each engine). A large value that only processors need stays with Ray as an object, and the
executor has its id. Ray moves it to where it is needed and keeps it through the end of the process
that made it; if the object is lost nevertheless, the executor has it made again.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from inspect import isawaitable
from typing import Any

import msgspec

from kairos.core import InvalidRequest, KairosError, SetupError, Unavailable
from kairos.host import allow_many_connections, collect_less_often
from kairos.settings import RetrievalSettings
from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.held import fill_held, held_id
from kairos.workflows.compile.operators import Declaration, Processing, RegisteredCall
from kairos.workflows.declare.functions import FunctionFailed, RegisteredFunction, given
from kairos.workflows.execute.commands import DropHeld, RunProcessor
from kairos.workflows.execute.facts import Stays
from kairos.workflows.ray.cluster import ray_module
from kairos.workflows.retrieve.flow_processors import ProcessorService, processor_service
from kairos.workflows.run.function_batches import awaited
from kairos.workflows.run.processing import ProcessorCalls, ValuesLost

HELD_FROM = 100 << 10  # bytes; Ray puts no smaller values of calls into its store
_PLACE = "ray"
_AT_ONCE = 4_096  # tasks of an actor

Key = tuple[str, str]  # kind of operator, and model; of collections `collections` and nothing


class ProcessorAnswer(msgspec.Struct, frozen=True):
    """Answer of an actor: a value, the bytes of one that stays with Ray, or an error."""

    value: object = None
    held_bytes: int | None = None
    error: str | None = None
    is_final: bool = False


class ProcessorActor:
    """An actor of Ray that performs calls of one model, or of all collections."""

    def __init__(
        self, settings: RetrievalSettings, keys: Mapping[str, str], at_once: int | None
    ) -> None:
        self._settings, self._keys, self._at_once = settings, keys, at_once
        self._stack, self._opening = AsyncExitStack(), asyncio.Lock()
        self._service: ProcessorService | None = None
        allow_many_connections()
        collect_less_often()

    async def perform(
        self, command: RunProcessor, held_from: int, ids: Sequence[str], *values: object
    ) -> tuple[ProcessorAnswer, object]:
        """Perform a command with these values of its held ids; return its answer.

        The second value stays with Ray, if it has `held_from` bytes or more and may stay.
        """
        try:
            service = await self._opened()
            asked = _filled(command, dict(zip(ids, values, strict=True)))
            value = await service.of().run(asked)
        except KairosError as error:
            is_final = isinstance(error, InvalidRequest) or error.is_final
            return ProcessorAnswer(error=str(error), is_final=is_final), None
        size = _held_bytes(command, value, held_from)
        if size is None:
            return ProcessorAnswer(value), None
        return ProcessorAnswer(held_bytes=size), value

    async def _opened(self) -> ProcessorService:
        async with self._opening:
            if self._service is None:
                opening = processor_service(self._settings, self._keys, at_once=self._at_once)
                self._service = await self._stack.enter_async_context(opening)
            return self._service


def start_processors(
    ray: Any,
    run_id: str,
    declaration: Declaration,
    settings: RetrievalSettings | None,
    keys: Mapping[str, str],
    concurrency: int | None,
) -> dict[Key, Any]:
    """Start the actors that a flow needs, whose operators name their models.

    `concurrency`: requests to all embedders, and to all rerankers, at most; None: no limit.
    """
    if settings is None:
        return {}
    params = [(each.kind, each.params) for each in every_operator(declaration.operators)]
    needed = (
        _key(kind, getattr(each, "model", None), getattr(each, "collection", None))
        for kind, each in params
        if isinstance(each, Processing)
    )
    wanted = sorted({key for key in needed if key is not None})
    started = {}
    for kind, model in wanted:
        of_kind = sum(each == kind for each, _ in wanted)
        at_once = None if concurrency is None else max(1, concurrency // of_kind)
        started[kind, model] = (
            ray.remote(ProcessorActor)
            .options(
                name=f"kairos-{run_id}-{kind}-{model}",
                num_cpus=0,
                max_restarts=-1,
                max_task_retries=-1,  # all tasks of processors may be repeated
                max_concurrency=_AT_ONCE,
            )
            .remote(_settings_of(kind, settings), keys, at_once)
        )
    return started


def stop(ray: Any, actors: Iterable[Any]) -> None:
    for each in actors:
        ray.kill(each)


class RayProcessors:
    """Processors of a partition. A row's own collections are made and searched in its process."""

    def __init__(self, actors: Mapping[Key, Any], here: ProcessorCalls, held_from: int) -> None:
        self._actors, self._here, self._held_from = actors, here, held_from
        self._references: dict[str, Any] = {}  # by id
        self._lost: set[str] = set()  # ids of values to be made again, which stay whatever size
        self._ray = ray_module()

    async def run(self, command: RunProcessor) -> object:
        """Carry out a command: see `Processors` in `workflows/run/processing.py`."""
        ids = list(command.held)
        if gone := [each for each in ids if each not in self._references]:
            raise self._losing(gone)  # of the process that this one has replaced
        references = [self._references[each] for each in ids]
        held_from = 0 if command.signature in self._lost else self._held_from
        key = _key(command.kind, command.model, command.arguments.get("collection"))
        actor = None if key is None else self._actors[key]
        try:
            if actor is not None:
                performing = actor.perform.options(num_returns=2)
                answer, value = performing.remote(command, held_from, ids, *references)
                return self._answered(command, await answer, value)
            values = dict(zip(ids, await asyncio.gather(*references), strict=True))
        except Exception as error:
            if _is_lost(self._ray, error):
                raise self._losing(ids) from error
            raise
        value = await self._here.run(_filled(command, values))
        size = _held_bytes(command, value, held_from)
        if size is None:
            return value
        return self._staying(command, self._ray.put(value), size)

    def drop_held(self, command: DropHeld) -> None:
        self._references.pop(command.value_id, None)
        self._lost.discard(command.value_id)

    def _answered(self, command: RunProcessor, answer: ProcessorAnswer, value: Any) -> object:
        if answer.error is not None:
            raise (InvalidRequest if answer.is_final else Unavailable)(answer.error)
        if answer.held_bytes is None:
            return answer.value
        return self._staying(command, value, answer.held_bytes)

    def _staying(self, command: RunProcessor, reference: Any, size: int) -> Stays:
        self._references[command.signature] = reference
        return Stays(_PLACE, size)

    def _losing(self, ids: Iterable[str]) -> ValuesLost:
        lost = tuple(ids)
        self._lost.update(lost)
        for each in lost:
            self._references.pop(each, None)
        return ValuesLost(lost)


class HeavyFunctions:
    """Functions that were declared with CPUs, as tasks of Ray."""

    def __init__(self) -> None:
        self._ray = ray_module()
        self._call = self._ray.remote(_called)
        self._sent: dict[str, Any] = {}  # by name

    async def call(
        self, name: str, known: RegisteredFunction, arguments: Mapping[str, object], cpus: int
    ) -> tuple[object, float]:
        """Return the function's value, from a host that has CPUs for it, and the seconds it took.

        Raises:
            FunctionFailed: it has no value, or its process ended again and again.
            KairosError: the function raised it.
        """
        if name not in self._sent:
            self._sent[name] = self._ray.put(known)
        try:
            calling = self._call.options(num_cpus=cpus)
            value, took_s = await calling.remote(self._sent[name], arguments)
        except Exception as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, FunctionFailed | KairosError):
                raise cause from None
            said = str(error).strip().split("\n")[-1]
            raise FunctionFailed(f"{type(error).__name__}: {said}") from error
        return value, took_s


def check_cpus(ray: Any, declaration: Declaration) -> bool:
    """Return whether functions are declared heavy.

    Raises:
        SetupError: one needs more CPUs than any host of the cluster has.
    """
    params = [(each.name, each.params) for each in every_operator(declaration.operators)]
    heavy = [(n, p.cpus) for n, p in params if isinstance(p, RegisteredCall) and p.cpus]
    hosts = (each["Resources"].get("CPU", 0) for each in ray.nodes() if each["Alive"])
    most = int(max(hosts, default=0))
    for name, cpus in heavy:
        if cpus > most:
            raise SetupError(
                f"operator '{name}' has `cpus: {cpus}`, and no host of the cluster has more than "
                f"{most}"
            )
    return bool(heavy)


def _called(known: RegisteredFunction, arguments: Mapping[str, object]) -> tuple[object, float]:
    """Call a function in a task of Ray."""
    began_s = time.monotonic()
    value = known.call(arguments)
    if isawaitable(value):
        value = given(asyncio.run(awaited(value)))
    return value, time.monotonic() - began_s


def _key(kind: str, model: str | None, collection: object) -> Key | None:
    """Return the actor that performs an operator; None: the partition's process."""
    if kind in ("embed", "rerank"):
        return kind, model or ""
    is_named = isinstance(collection, str) and held_id(collection) is None
    return ("collections", "") if is_named else None


def _settings_of(kind: str, settings: RetrievalSettings) -> RetrievalSettings:
    match kind:
        case "embed":
            return RetrievalSettings(embedders=settings.embedders)
        case "rerank":
            return RetrievalSettings(rerankers=settings.rerankers)
    return RetrievalSettings(collections=settings.collections)


def _filled(command: RunProcessor, values: Mapping[str, object]) -> RunProcessor:
    arguments = fill_held(command.arguments, values)
    return msgspec.structs.replace(command, arguments=arguments, held={})


def _held_bytes(command: RunProcessor, value: object, held_from: int) -> int | None:
    """Return the bytes of a value that is to stay with Ray; None: it is not."""
    if not command.stays:
        return None
    size = len(msgspec.json.encode(value))
    return size if size >= held_from else None


def _is_lost(ray: Any, error: BaseException) -> bool:
    lost = ray.exceptions.ObjectLostError
    return isinstance(error, lost) or isinstance(getattr(error, "cause", None), lost)
