"""The workflows that a declared flow is over a table: each row with its calls, as simulated."""

from collections import defaultdict
from pathlib import Path

from kairos.call_row import CallRow
from kairos.call_tracker import CallTracker
from kairos.dispatcher.placements import PLACEMENTS
from kairos.errors import SetupError
from kairos.events import Record
from kairos.plan.pipeline import Passes
from kairos.scheduler.policies import POLICIES
from kairos.sim.engine.profiles import profile
from kairos.sim.flow_simulation import PoolOptions
from kairos.sim.plan import PROFILE
from kairos.tools.flow_simulated import simulated
from kairos.tools.recording import workflow_calls
from kairos.workload.workflow_file import FileCall
from kairos.workload.workflows import Workflow, workflow

ENGINES = 4  # on which the flow is run, to see its calls


def flow_workflows(flow: Path, inputs: Path | None, functions: Path | None) -> list[Workflow]:
    """A workflow for each row that makes calls, in the order in which these end.

    Prompts have the length that the rows give them, four bytes a token; answers are made up within
    their limits (`sim/flow_answers.py`). Equal calls are made once, as in a run, so only one row
    has them. Prefixes that rows share are found in caches, as far as the engines of the simulation
    found them.

    Raises:
        SetupError: the flow or the table is missing or wrong, or makes no calls.
    """
    tracker, ended = CallTracker(), list[CallRow]()

    def observe(record: Record) -> None:
        ended.extend(tracker.observe(record))

    pool = PoolOptions(
        instances=ENGINES,
        profile=profile(PROFILE),
        policy=POLICIES["kairos"],
        placement=PLACEMENTS["kairos"],
    )
    simulated(flow, inputs, functions, Passes(), pool, (observe,))
    by_row: defaultdict[str, list[FileCall]] = defaultdict(list)
    for call in workflow_calls(ended):
        by_row[call.workflow_id].append(call)
    if not by_row:
        raise SetupError(f"{flow} makes no calls with these inputs: there is nothing to plan for")
    return [workflow(calls) for calls in by_row.values()]
