"""Workflows of a declared flow over a table: each row with its calls, as simulated."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from kairos.core import PLACEMENTS, POLICIES, CallRow, CallTracker, Record, SetupError
from kairos.engines import load_profile
from kairos.simulate.export import workflow_calls
from kairos.simulate.flow_answers import tokens_of
from kairos.simulate.flow_client import FlowClient
from kairos.simulate.flow_simulation import PoolOptions, simulate_flow_file
from kairos.simulate.plan import PROFILE
from kairos.simulate.workload.workflow_file import FileCall
from kairos.simulate.workload.workflows import Workflow, workflow
from kairos.workflows import Calling, IssueCall, Passes, Plan, RunProcessor, TouchPrefix

ENGINES = 4  # on which the flow is run, to see its calls


MOST_PARTS = 16  # calls in which one operator's texts are embedded or ranked; more share a call


# Of what embeds and ranks: the argument with the texts, and the model where none is named.
_TEXTS = {"embed": "texts", "rerank": "passages"}
_MODELS = {"embed": "qwen3-embedding-8b", "rerank": "qwen3-reranker-0.6b"}


class _Watched(FlowClient):
    """A flow's client that keeps which models its operators ask for, and which texts."""

    def __init__(self, plan: Plan, *more: Any, **others: Any) -> None:
        self.name = plan.declaration.name
        self.models: dict[str, str | None] = {}  # by operator
        self.asked: list[tuple[int, RunProcessor]] = []  # µs, and what embeds and ranks
        super().__init__(plan, *more, **others)

    def make_call(self, command: Calling | TouchPrefix) -> None:
        if isinstance(command, IssueCall):
            self.models[command.operator] = command.model
        elif isinstance(command, RunProcessor) and command.kind in _TEXTS:
            self.asked.append((self._clock.now(), command))
        super().make_call(command)


def workflows_of_flow(flow: Path, inputs: Path | None, functions: Path | None) -> list[Workflow]:
    """A workflow for each row that makes calls, in the order in which these end.

    Prompts have the length that the rows give them, four bytes a token; answers are made up within
    their limits (`simulate/flow_answers.py`). Equal calls are made once, as in a run, so only one
    row has them. Prefixes that rows share are found in caches, as far as the engines of the
    simulation found them. What embeds and ranks are calls too: the text is the prompt, and the
    answer counts as one token. Calls have the model that their operator names.

    Raises:
        SetupError: the flow or the table is missing or wrong, or makes no calls.
    """
    tracker, ended = CallTracker(), list[CallRow]()
    clients: list[_Watched] = []

    def observe(record: Record) -> None:
        ended.extend(tracker.observe(record))

    def client(*args: Any, **more: Any) -> _Watched:
        clients.append(_Watched(*args, **more))
        return clients[-1]

    pool = PoolOptions(
        instances=ENGINES,
        profile=load_profile(PROFILE),
        policy=POLICIES["kairos"],
        placement=PLACEMENTS["kairos"],
        client=client,
    )
    simulate_flow_file(flow, inputs, functions, Passes(), pool, (observe,))
    [watched] = clients
    by_row: defaultdict[str, list[FileCall]] = defaultdict(list)
    for call in workflow_calls(ended):
        by_row[call.workflow_id].append(replace(call, model=watched.models.get(call.agent)))
    beside: defaultdict[str, list[tuple[int, RunProcessor]]] = defaultdict(list)
    for at, command in watched.asked:
        beside[f"{command.stage}.{command.row}"].append((at // 1000, command))
    if not by_row and not beside:
        raise SetupError(f"{flow} makes no calls with these inputs: there is nothing to plan for")
    names = dict.fromkeys([*by_row, *beside])
    return [
        workflow(_merged(watched.name, name, by_row.get(name, []), beside.get(name, [])))
        for name in names
    ]


def _merged(
    flow: str, row: str, calls: Sequence[FileCall], beside: Sequence[tuple[int, RunProcessor]]
) -> list[FileCall]:
    """Return a row's calls in the order in which they began."""
    timed = [((each.workflow_start_ms or 0) + (each.start_ms or 0), 1, [each]) for each in calls]
    timed += [(at, 0, _processed(flow, row, command)) for at, command in beside]
    timed.sort(key=lambda each: each[:2])
    begin = calls[0].workflow_start_ms if calls else None
    found = [call for _, _, some in timed for call in some]
    return [
        replace(call, call_index=index, workflow_start_ms=begin) for index, call in enumerate(found)
    ]


def _processed(flow: str, row: str, command: RunProcessor) -> list[FileCall]:
    """Return what one operator asks an engine: its texts in up to `MOST_PARTS` calls at once."""
    query = command.arguments.get("query")
    beside = tokens_of(query) if isinstance(query, str) else 0
    tokens = [tokens_of(each) + beside for each in _texts(command.arguments[_TEXTS[command.kind]])]
    return [
        FileCall(
            workflow_id=row,
            app=flow,
            agent=command.operator,
            upstream=None,
            call_index=0,
            prompt_tokens=sum(tokens[first::MOST_PARTS]),
            completion_tokens=1,
            parallel_group=f"texts-{command.call}" if len(tokens) > 1 else None,
            model=command.model or _MODELS[command.kind],
        )
        for first in range(min(MOST_PARTS, len(tokens)))
    ]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
    else:
        yield str(value)
