"""Perform the tasks of a processor.

Values that a task needs are fetched from their holders; its own result is held if it is to stay.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from kairos.core import InvalidRequest
from kairos.workflows.compile.held import held_id, held_in, held_text
from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.compile.operators import Embedding, Ingest, Processing, Rerank, Search
from kairos.workflows.compile.retrieval import check_arguments, is_passing
from kairos.workflows.execute.commands import RunProcessor
from kairos.workflows.remote.held_store import HeldStore, Run
from kairos.workflows.remote.peers import ProcessorPeers
from kairos.workflows.remote.wire import ProcessorReply, ProcessorTask, params_of
from kairos.workflows.retrieve.lost import ValuesLost
from kairos.workflows.retrieve.service import ProcessorService

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class ProcessorWork:
    """Work of a processor.

    `answered_bytes`: vectors and collections returned to the caller since the process began.
    """

    def __init__(self, service: ProcessorService, store: HeldStore, peers: ProcessorPeers) -> None:
        self.store, self.peers = store, peers
        self._service = service
        self.answered_bytes = 0
        self.lost = 0  # needed values that were gone

    async def do(self, task: ProcessorTask, caller: str) -> ProcessorReply:
        """Perform a task. `caller`: the tenant that asks, which sees only its own values.

        Raises:
            KairosError: see `FlowProcessors.run`.
        """
        run, command = (caller, task.run), task.command
        self.store.drop(run, task.drop)
        params = self._params(command)
        try:
            check_arguments(params, command.arguments)  # before anything is fetched for them
            arguments = await self._with_values(task, run)
            check_arguments(params, arguments)
        except ValuesLost as error:
            self.lost += len(error.ids)
            return ProcessorReply(lost=error.ids)
        except (OperatorFailed, KeyError) as error:
            raise InvalidRequest(f"the arguments are not what the kind takes: {error}") from None
        asked = msgspec.structs.replace(command, arguments=arguments, held={})
        flow = self._service.of(began_at=task.began_at, tenant=task.tenant)
        value = _encode(await flow.run(asked))
        if command.stays:
            self.store.put(run, command.signature, value)
            return ProcessorReply(held_bytes=len(value))
        if is_passing(params):
            self.answered_bytes += len(value)
        return ProcessorReply(msgspec.Raw(value))

    def _params(self, command: RunProcessor) -> Processing:
        """Return the operator of a command.

        Raises InvalidRequest: it cannot be carried out here.
        """
        params, service = params_of(command), self._service
        if command.stays and held_id(held_text(command.signature)) is None:
            raise InvalidRequest(
                "a value to be held needs the signature of its call, and this is not one"
            )
        is_able = service.keeps_collections
        match params:
            case Embedding() | Rerank():
                is_able = command.kind in service.models
            case Ingest(collection=None) | Search(collection=None):
                is_able = True
        if not is_able:
            raise InvalidRequest(f"this processor cannot serve operators of kind {command.kind}")
        return params

    async def _with_values(self, task: ProcessorTask, run: Run) -> Mapping[str, object]:
        """Return the arguments, with values in place of their ids.

        Raises:
            InvalidRequest: the place of a value is not known.
            ValuesLost: values that are gone.
        """
        arguments, places = task.command.arguments, task.command.held
        ids = list(dict.fromkeys(held_in(arguments)))
        if not ids:
            return arguments
        for each in ids:
            if each not in places:
                raise InvalidRequest("an argument is a held value, and its processor is not given")
            if places[each] != task.place:
                self.peers.check(places[each])
        found = await asyncio.gather(
            *(self._value(run, each, places[each], task) for each in ids), return_exceptions=True
        )
        lost = [each for each, value in zip(ids, found, strict=True) if _is_lost(value)]
        for value in found:
            if isinstance(value, BaseException) and not _is_lost(value):
                raise value
        if lost:
            raise ValuesLost(lost)
        return _filled(arguments, dict(zip(ids, found, strict=True)))

    async def _value(self, run: Run, value_id: str, place: str, task: ProcessorTask) -> Any:
        if place != task.place:
            return _decode(await self.peers.fetch(place, task.run, value_id))
        value = self.store.get(run, value_id)
        if value is None:
            raise ValuesLost([value_id])
        return _decode(value)


def _is_lost(value: object) -> bool:
    return isinstance(value, ValuesLost)


def _filled(arguments: Mapping[str, object], values: Mapping[str, object]) -> dict[str, object]:
    def of(argument: object) -> object:
        found = held_id(argument)
        return argument if found is None else values[found]

    filled = dict(arguments)
    for name in ("vectors", "collection"):
        argument = arguments.get(name)
        if isinstance(argument, list):
            filled[name] = [of(each) for each in argument]
        elif argument is not None:
            filled[name] = of(argument)
    return filled
