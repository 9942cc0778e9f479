"""Runs of declared workflows, as commands and programs begin, resume, list and cancel them."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from kairos.core import EngineProfile, SetupError
from kairos.engines import load_profile
from kairos.settings import RetrievalSettings
from kairos.workflows.compile.costs.latency import measured_latencies
from kairos.workflows.compile.flow_profile import FlowProfile
from kairos.workflows.compile.forecast import forecast_flow
from kairos.workflows.declare.declaring import Flow
from kairos.workflows.execute.observation import Timeline
from kairos.workflows.ray.run import forget_results
from kairos.workflows.run.flow_file import LoadedFlow, load_flow, table_path
from kairos.workflows.run.flow_run import Note
from kairos.workflows.run.pool import OpenEngines
from kairos.workflows.run.run_places import RunPlaces
from kairos.workflows.run.run_shown import show_run, show_runs, state_of
from kairos.workflows.run.run_store import RunDirectory, RunForecast, RunRecord, RunStore
from kairos.workflows.start.profile_file import known_profile, profile_path, read_profile
from kairos.workflows.start.run_found import find_run
from kairos.workflows.start.run_task import (
    PERFORMERS,
    FlowTask,
    Watch,
    check_task,
    new_record,
    run_task,
)

_STOP_S = 600.0  # for calls in flight


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `kairos run`."""

    flow: Path
    out: Path
    inputs: Path | None = None
    functions: Path | None = None
    engines: tuple[str, ...] = ()
    url: str | None = None
    host: Path | None = None
    api_key_env: str | None = None
    model: str | None = None
    retrieval: RetrievalSettings | None = None
    passes: dict[str, bool] = {}  # the ones that are off
    revision: str = ""
    uses_cache: bool = True
    concurrency: int | None = None
    max_calls: int | None = None
    max_tokens: int | None = None
    service_class: str = "batch"
    log_dir: Path | None = None
    learnt: Path | None = None  # profile of the flow; None: the one next to it
    engine_profile: str | None = None
    on: str | None = None
    partitions: int | None = None
    results: str | None = None

    def check(self) -> None:
        """Check options that require or exclude another one.

        Raises:
            SetupError: An option has no effect without another, or contradicts another.
        """
        _check_performers(self.engines, self.url, self.host)
        if self.on is None and self.partitions is not None:
            raise SetupError("--partitions goes with --on local-ray, or ray://HEAD:PORT")
        if self.on is not None and self.log_dir is not None:
            raise SetupError("--log and --on exclude each other: leave one of them out")
        if self.engine_profile is not None and not self.engines:
            raise SetupError(
                "--engine-profile goes with --engine: of a Kairos elsewhere nobody knows here how "
                "many engines it has"
            )


# Options that a run's record has as they are given.
_AS_GIVEN = (
    *("engines", "url", "api_key_env", "model", "retrieval", "passes", "revision", "uses_cache"),
    *("concurrency", "max_calls", "max_tokens", "service_class", "on", "partitions", "results"),
)


class FlowRuns:
    """Runs that are kept in one directory, each with its record, results and lock."""

    def __init__(self, root: Path | None = None) -> None:
        """Open the directory; None: the default one, $KAIROS_RUNS or the user's state directory.

        Raises:
            SetupError: The directory cannot be used.
        """
        self._store = RunStore(root or runs_root(os.environ))

    def prepare(self, options: RunOptions) -> FlowTask:
        """Check a new run as far as possible without engines.

        Raises:
            SetupError: Something is wrong; the message says what is expected.
        """
        options.check()
        table = table_path(options.flow, options.inputs)
        loaded = load_flow(options.flow, options.functions)
        known = known_profile(options.learnt, options.flow)
        record = new_record(
            self._store,
            loaded.declaration,
            flow_path=str(options.flow.absolute()),
            functions_path=_absolute(options.functions),
            inputs=str(table.absolute()),
            out=str(options.out.absolute()),
            host=_absolute(options.host),
            batches={} if known is None else known.efficient_batches,
            learnt=None if options.host is None else known,
            **{name: getattr(options, name) for name in _AS_GIVEN},
        )
        log_dir = None if options.log_dir is None else str(options.log_dir)
        task = check_task(record, loaded.declaration, loaded.functions, table, log_dir=log_dir)
        if options.engine_profile is None:
            return task
        known = known or read_profile(profile_path(options.flow))
        return _expecting(task, known, load_profile(options.engine_profile))

    def prepare_program(
        self,
        flow: Flow | LoadedFlow,
        table: object,
        out: Path | str,
        resume: str | None = None,
        **fields: Any,
    ) -> FlowTask:
        """Check a run of a flow that a program declares, new or to resume.

        Args:
            flow: The flow.
            table: As `open_table` takes it.
            out: The file to write.
            resume: The id of the run to resume; None: a new one.
            fields: Other fields of `RunRecord`.

        Raises:
            SetupError: Something is wrong; the message says what is expected.
        """
        inputs = str(table) if isinstance(table, str | Path) else None
        place = str(Path(out).absolute())
        record = new_record(self._store, flow.declaration, inputs=inputs, out=place, **fields)
        directory = None
        if resume is not None:
            directory, before = find_run(self._store, resume, record.results)
            record = msgspec.structs.replace(
                record,
                id=before.id,
                results=before.results,
                created_at=before.created_at,
                plan_digest=before.plan_digest,
                batches=record.batches or before.batches,
                figures=before.figures,
                fallbacks=before.fallbacks,
                written=before.written,
            )
        return check_task(record, flow.declaration, flow.functions, table, directory)

    def resume(self, run: str, places: RunPlaces, results: str | None) -> FlowTask:
        """Check a stopped run before it is resumed.

        Args:
            run: Its id, or a prefix; the whole id if this host does not have the run.
            places: Its files and engines, where the record names others.
            results: The database that has its results; None: as in its record.

        Raises:
            SetupError: Something is wrong; the message says what is expected.
        """
        _check_performers(places.engines, places.url, places.host)
        directory, record = find_run(self._store, run, results, places)
        flow_path, table = record.flow_path, record.inputs
        if flow_path is None or table is None or not record.out:
            raise SetupError(f"{record.id} belongs to a program, which alone can go on with it")
        functions_path = Path(record.functions_path) if record.functions_path else None
        loaded = load_flow(Path(flow_path), functions_path)
        return check_task(record, loaded.declaration, loaded.functions, table, directory)

    async def drive(
        self,
        task: FlowTask,
        open_engines: OpenEngines,
        on_note: Note,
        watch: Watch = lambda _: None,
        timeline: Timeline | None = None,
    ) -> RunRecord:
        """Run a task to its end, or until it is stopped: see `run_task`.

        Raises:
            SetupError: It cannot run; nothing was spent, unless the message says so.
        """
        return await run_task(task, self._store, open_engines, on_note, watch, timeline=timeline)

    def cancel(self, run: str) -> tuple[RunRecord, bool]:
        """Stop a run for good, and remove its results; a finished run is not changed.

        Returns its record, and whether it was changed.

        Raises:
            SetupError: No run matches, or its process does not stop within ten minutes.
        """
        found = self._store.find(run)
        found.stop_holder(_STOP_S)
        with found.held():
            before = found.read()
            if before.state in ("done", "cancelled"):
                return before, False
            now = time.time_ns() // 1000
            record = msgspec.structs.replace(before, state="cancelled", changed_at=now)
            found.write(record)
            found.forget_results()
            forget_results(record)
        return record, True

    def describe_all(self) -> list[dict[str, object]]:
        """Return all runs, the latest first, as values of JSON."""
        return [_described(directory, record) for directory, record in self._store.all()]

    def describe(self, run: str) -> dict[str, object]:
        """Return a run as a value of JSON. Raises SetupError: no run matches, or several do."""
        found = self._store.find(run)
        return _described(found, found.read())

    def show_all(self, console: Console) -> None:
        """Print all runs, the latest first."""
        show_runs(console, self._store.all())

    def show(self, console: Console, run: str) -> None:
        """Print a run. Raises SetupError: no run matches, or several do."""
        found = self._store.find(run)
        show_run(console, found, found.read())


def runs_root(environ: Mapping[str, str]) -> Path:
    """Return the default directory of runs: $KAIROS_RUNS, else in the user's state directory."""
    if told := environ.get("KAIROS_RUNS"):
        return Path(told)
    state = environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "kairos"


def _described(directory: RunDirectory, record: RunRecord) -> dict[str, object]:
    return msgspec.structs.asdict(record) | {"state": state_of(directory, record)}


def _check_performers(engines: tuple[str, ...], url: str | None, host: object) -> None:
    """Check that performers of calls are named in one way only."""
    if bool(engines) + (url is not None) + (host is not None) > 1:
        raise SetupError(PERFORMERS)


def _absolute(path: Path | None) -> str | None:
    """Return the absolute path, for storage: a run may be resumed from another directory."""
    return None if path is None else str(path.absolute())


def _expecting(task: FlowTask, known: FlowProfile, engine: EngineProfile) -> FlowTask:
    """Return the task with a forecast for its engines in the record.

    Its passes weigh savings by the engines' times.
    """
    readable = (row.values for row in task.table.rows() if row.values is not None)
    found = forecast_flow(task.plan(), known, readable, engine, len(task.record.engines))
    expected = RunForecast(
        time_s=found.time_s.mean,
        low_s=found.time_s.low,
        high_s=found.time_s.high,
        calls=found.calls,
        prompt_tokens=found.prompt_tokens.mean,
        completion_tokens=found.completion_tokens.mean,
        cached_share=found.cached_share,
    )
    record = msgspec.structs.replace(task.record, forecast=expected)
    costs = measured_latencies(engine, known.answers, known.times_us)
    return msgspec.structs.replace(task, record=record, latencies=costs)
