"""Profile a flow: run some rows of its table, and learn from what is observed."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from kairos.core import SetupError
from kairos.workflows.compile.flow_profile import FlowProfile, learn_profile
from kairos.workflows.compile.forecast import with_text_tokens
from kairos.workflows.compile.operators import Declaration
from kairos.workflows.compile.pipeline import Passes, Plan
from kairos.workflows.declare.functions import Functions
from kairos.workflows.execute.observation import ROWS_KEPT, FlowObservation
from kairos.workflows.run.flow_file import load_table_flow, table_path
from kairos.workflows.run.flow_run import FlowRun
from kairos.workflows.run.pool import OpenEngines
from kairos.workflows.run.rows import InputTable
from kairos.workflows.run.run_store import RunStore
from kairos.workflows.start.flow_measured import AskedOfRun, measured_batches, measured_factors
from kairos.workflows.start.profile_file import profile_lines, profile_path, write_profile
from kairos.workflows.start.run_task import (
    DrivenRun,
    check_task,
    new_record,
    run_processors,
    run_task,
)

Row = dict[str, Any]


class FlowSample(msgspec.Struct, frozen=True):
    """Flow, and some rows of a table to learn from."""

    path: Path  # of the flow
    declaration: Declaration
    functions: Functions
    plan: Plan
    rows: list[Row]

    def learn(self, seen: FlowObservation) -> FlowProfile:
        """Return what the rows taught in a run that was observed, in virtual time or in real."""
        operators = seen.operators.items()
        found = learn_profile(
            self.plan,
            min(len(self.rows), ROWS_KEPT),
            {name: each.lengths for name, each in operators},
            {name: list(each.times.values()) for name, each in operators},
            {name: each.took_us for name, each in operators},
        )
        found = msgspec.structs.replace(found, rows=len(self.rows))
        return with_text_tokens(found, self.plan, self.rows)

    async def measure(self, open_engines: OpenEngines, **pool: Any) -> FlowProfile:
        """Run the rows with real calls, and return what they taught; the run is not kept.

        No cached results are used.

        Args:
            open_engines: opens a Kairos for the engines.
            pool: `engines` or `url`, and other fields of `RunRecord`.

        Raises:
            SetupError: No engine is given, or all rows failed.
        """
        runs: list[DrivenRun] = []
        asked = AskedOfRun()
        with TemporaryDirectory() as scratch:
            store = RunStore(Path(scratch))
            out = str(Path(scratch) / "out.jsonl")
            record = new_record(store, self.declaration, out=out, uses_cache=False, **pool)
            task = check_task(record, self.declaration, self.functions, list(self.rows))
            record = await run_task(
                task, store, open_engines, lambda _: None, runs.append, timeline=asked
            )
        failed = record.figures.get("failed", 0)
        if failed == len(self.rows):
            raise SetupError(
                f"all {failed} rows failed, so nothing was learnt: kairos run on this table says "
                "why"
            )
        assert isinstance(runs[0], FlowRun), "it is of this process"
        found = self.learn(runs[0].observation)
        async with run_processors(record) as processors:
            batches = await measured_batches(asked, processors, self.functions)
        factors = await measured_factors(self.plan, record, asked, open_engines)
        return msgspec.structs.replace(found, batches=batches, cost=factors)

    def keep_profile(self, profile: FlowProfile, out: Path | None) -> list[str]:
        """Write a profile, by default next to the flow, and return lines about it.

        Raises:
            SetupError: The file cannot be written.
        """
        written = out or profile_path(self.path)
        write_profile(written, profile)
        return [*profile_lines(profile), f"written to {written}"]


def sample_flow(
    flow: Path, functions: Path | None, inputs: Path | None, rows: int, seed: int
) -> FlowSample:
    """Return a flow with `rows` rows of its table, drawn by `seed`.

    Raises:
        SetupError: The flow, its functions and the table do not fit together, or no row can be
            read.
    """
    asked = load_table_flow(flow, functions, table_path(flow, inputs), Passes())
    sample = sampled_rows(asked.table, rows, seed)
    return FlowSample(flow, asked.declaration, asked.functions, asked.plan, sample)


def sampled_rows(table: InputTable, count: int, seed: int) -> list[Row]:
    """Return `count` rows of a table, in order; any set is equally likely (reservoir sampling).

    Unreadable rows are skipped.

    Raises:
        SetupError: The table has no readable row.
    """
    dice = np.random.default_rng(seed)
    kept: list[tuple[int, Row]] = []
    for seen, row in enumerate(row for row in table.rows() if row.values is not None):
        assert row.values is not None
        if len(kept) < count:
            kept.append((seen, row.values))
        elif (place := int(dice.integers(seen + 1))) < count:
            kept[place] = (seen, row.values)
    if not kept:
        raise SetupError("the table has no row that could be read: there is nothing to learn from")
    return [values for _, values in sorted(kept, key=lambda each: each[0])]
