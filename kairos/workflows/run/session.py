"""Progress of a run: in this session, and over all sessions."""

from collections.abc import Mapping

import msgspec

from kairos.workflows.execute.observation import Fallback, FlowObservation
from kairos.workflows.run.driver import RunDriver
from kairos.workflows.run.intake import TableIntake
from kairos.workflows.run.result_store import ResultStore
from kairos.workflows.run.rows import InputTable

# Figures of an executor that are added up over the sessions of a run.
SPENT_FIGURES = (
    "calls",
    "functions",
    "processed",
    "retried",
    "cut",
    "skipped",
    "defaulted",
    "merged",
    "fetched",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "touched",
)
_ALL = 1 << 62  # rows
_ENDED = ("written", "failed", "dropped", "gathered")


class RunProgress(msgspec.Struct, frozen=True):
    """Progress of this session: expected rows, and rows that need no more work."""

    rows: int | None = None
    ended: int = 0
    ended_before: int = 0
    elapsed_s: float = 0.0
    figures: dict[str, int] = {}
    waits_for: str = ""


class RunSession:
    def __init__(
        self, driver: RunDriver, intake: TableIntake, store: ResultStore, table: InputTable
    ) -> None:
        self.driver, self.intake = driver, intake
        self._store, self._table = store, table
        self._ended_before = store.outcomes(0, _ALL)

    @property
    def observation(self) -> FlowObservation:
        return self.driver.executor.observation

    def progress(self, elapsed_s: float) -> RunProgress:
        figures, read = self._now(), self.intake.read[0]
        rows = read if self.intake.is_at_end else self._table.expected_rows(read)
        before = self.intake.ended_before
        ended = before + sum(figures.get(name, 0) for name in _ENDED)
        return RunProgress(rows, ended, before, elapsed_s, figures)

    def figures(self, before: Mapping[str, int]) -> dict[str, int]:
        """Return usage and savings of all sessions, and the rows by outcome.

        Rows are not counted again, so the figures are approximate.
        """
        now, ended = self._now(), {**self._ended_before, "failed": 0}
        rows = {name: ended.get(name, 0) + now.get(name, 0) for name in _ENDED}
        return {"rows": self.intake.read[0], **rows, **self._spent(before)}

    def final_figures(self, before: Mapping[str, int]) -> dict[str, int]:
        """Return the same figures, with rows counted exactly: a second for some million rows."""
        ends = [self._store.outcomes(stage, rows) for stage, rows in enumerate(self.intake.read)]
        rows = {name: sum(each.get(name, 0) for each in ends) for name in _ENDED}
        return {"rows": self.intake.read[0], **rows, **self._spent(before)}

    def fallbacks(self, before: Mapping[str, Fallback]) -> dict[str, Fallback]:
        """Return the rows of all sessions that continued without a value, by operator."""
        found = dict(before)
        for name, now in self.observation.fallbacks.items():
            found[name] = found[name].plus(now) if name in found else now
        return found

    def _spent(self, before: Mapping[str, int]) -> dict[str, int]:
        now = self._now()
        spent = {name: before.get(name, 0) + now.get(name, 0) for name in SPENT_FIGURES}
        return {name: value for name, value in spent.items() if value}

    def _now(self) -> dict[str, int]:
        figures = msgspec.structs.asdict(self.driver.executor.figures)
        return {name: value for name, value in figures.items() if value}
