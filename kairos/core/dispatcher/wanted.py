"""Requests in the memory layout of the kernel, cached while they wait. Not in the paper.

The tokens of a prompt that each instance has cached are columns with a row per instance. Many
prompts begin with a prefix that many instances have cached, such as an agent's instructions. The
columns of such a run are stored with it, and updated only for instances that changed.
"""

from array import array
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from kairos.core.dispatcher.compiled_table import CompiledTable
from kairos.core.dispatcher.demand import limit_of
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.dispatcher.native import NEVER, NOWHERE, NUMBER, WAITS_PLACE, WANTED, Block
from kairos.core.dispatcher.prefix_runs import Held, PrefixRun, PrefixRuns, RunColumn, RunColumns
from kairos.core.dispatcher.warm_waits import WarmWaits
from kairos.core.learnt import Distribution
from kairos.core.model import Request

_MANY = 8  # number of instances with a run from which its columns are stored


_MAX_KEPT = 256  # requests
_NEW = -1  # never written; not a valid time
_AT_ONCE = 16  # number of changed instances below which a prompt is looked up for each of them


class _Prompt:
    """Tokens of a prompt, by row of the instance: in use by calls in flight, and cached."""

    def __init__(
        self,
        alone: bool,
        arranged: tuple[int, int],
        changes: int,
        beginning: tuple[PrefixRun | None, int],
        in_use: "array[float] | None",
        cached: "array[float] | None",
    ) -> None:
        self.alone = alone  # for a single instance: the cache does not matter
        # State at the lookup: assignment of instances to rows, changes of the prefix index.
        self.arranged = arranged
        self.changes = changes
        self.beginning = beginning  # see `PrefixRuns`
        self.in_use = in_use  # None: in use nowhere
        self.cached = cached


_NO_PROMPT = _Prompt(
    alone=False, arranged=(-1, -1), changes=-1, beginning=(None, 0), in_use=None, cached=None
)


class _Wanted:
    """Data of one request."""

    def __init__(self, request: Request) -> None:
        self.request = request  # compared, since another request may reuse the id
        self.block = Block(WANTED.size)
        self.prompt = _NO_PROMPT
        self.answer: Distribution | None = None  # learnt distribution of its length
        self.curve = -1, -1  # its row, and `Curves.forgotten` at that time
        self.kept: tuple[str, int] | None = None
        self.waits_since = _NEW


class _Together:
    """Result for requests of one batch, for which no curve had to be drawn."""

    def __init__(
        self,
        requests: Sequence[Request],
        state: tuple[int, ...],
        wanted: Sequence[_Wanted],
        places: "array[int]",
    ) -> None:
        self.requests: Final = requests
        self.state: Final = state  # of everything they depend on, except their answers
        self.wanted: Final = wanted
        self.places: Final = places


class WantedRequests:
    """Data of requests by id, oldest first."""

    def __init__(self, ledger: Ledger, table: CompiledTable, waits: WarmWaits) -> None:
        self._ledger, self._table, self._waits = ledger, table, waits
        self._prefix_columns = PrefixColumns(ledger.prefixes.runs, table)
        self._wanted: dict[str, _Wanted] = {}
        self._together = _Together((), (), (), array("q"))
        self._changed: tuple[tuple[int, int], list[str]] = (0, 0), []

    def places(self, requests: Sequence[Request], at: int) -> "array[int]":
        """Return the addresses of the requests, as `at` does, in order.

        Stops before a request whose curve would have to be drawn, unless it is the first. A curve
        is drawn only when it is the request's turn, since it also affects calls in flight.
        """
        ledger = self._ledger
        forgotten = ledger.curves.forgotten
        state = *self._arranged(), ledger.prefixes.runs.changes, forgotten, self._waits.changes
        known, answer = self._together, ledger.lengths.completion_tokens
        is_known = known.requests is requests and known.state == state
        if is_known and all(answer(each.request) is each.answer for each in known.wanted):
            return known.places
        places, wanted = array("q"), list[_Wanted]()
        for each in requests:
            place = self.at(each, at, draws=not places)
            if not place:
                break
            places.append(place)
            wanted.append(self._wanted[each.id])
        # Do not cache the result if memory is retained for a request, which expires, or if the
        # batch is incomplete.
        is_whole = len(wanted) == len(requests) and all(each.kept is None for each in wanted)
        stays = is_whole and ledger.curves.forgotten == forgotten
        self._together = _Together(requests if stays else (), state, wanted, places)
        return places

    def at(
        self,
        request: Request,
        at: int,
        *,
        alone: bool = False,
        draws: bool = True,
    ) -> int:
        """Return the address of the request's data, updated. Call `CompiledTable.renew` first.

        `alone`: for a single instance, so the cache does not matter. `draws`: whether its curve may
        be drawn; if not, and it would have to be, the result is 0.
        """
        ledger, wanted = self._ledger, self._known(request)
        answer, is_new = ledger.lengths.completion_tokens(request), wanted.waits_since == _NEW
        is_drawn = answer is wanted.answer and wanted.curve[1] == ledger.curves.forgotten
        if not (is_drawn or draws):
            return 0
        if request.prefix:
            prompt, arranged = wanted.prompt, self._arranged()
            is_known = prompt.arranged == arranged and prompt.alone <= alone
            if not is_known or prompt.changes != ledger.prefixes.runs.changes:
                is_new |= self._look_up(request, wanted, arranged, alone=alone)
        if is_new or not is_drawn:
            row = ledger.curves.row(ledger.lengths.kind(request), request, answer)
            wanted.answer, wanted.curve, is_new = answer, (row, ledger.curves.forgotten), True
        kept, since = ledger.retention.kept_for(request, at), self._waits.since(request.id)
        since = NEVER if since is None else since
        if is_new or kept != wanted.kept:
            wanted.kept, wanted.waits_since = kept, since
            self._write(request, wanted)
        elif since != wanted.waits_since:
            wanted.waits_since = since
            NUMBER.pack_into(wanted.block.bytes, WAITS_PLACE, since)
        return wanted.block.at

    def _known(self, request: Request) -> _Wanted:
        wanted = self._wanted.get(request.id)
        if wanted is None or wanted.request is not request:
            if len(self._wanted) >= _MAX_KEPT:
                del self._wanted[next(iter(self._wanted))]
            wanted = self._wanted[request.id] = _Wanted(request)
        return wanted

    def _look_up(
        self, request: Request, wanted: _Wanted, arranged: tuple[int, int], *, alone: bool
    ) -> bool:
        """Look up the prompt, and return whether its columns have moved in memory."""
        prefixes, prompt = self._ledger.prefixes, wanted.prompt
        beginning = prefixes.runs.beginning(request.prefix)
        if prompt.arranged == arranged and prompt.alone <= alone:
            if prompt.beginning == beginning:
                prompt.changes = prefixes.runs.changes
                return False
            changed = self._changed_since(prompt.changes)
            if len(changed) < _AT_ONCE:
                prompt.changes, prompt.beginning = prefixes.runs.changes, beginning
                return self._look_up_some(request, prompt, changed)
        in_use, cached = self._prefix_columns.of(request, arranged, alone=alone)
        wanted.prompt = _Prompt(alone, arranged, prefixes.runs.changes, beginning, in_use, cached)
        return True

    def _changed_since(self, changes: int) -> list[str]:
        """Return the ids of changed instances, at most `_AT_ONCE`, cached for the same query."""
        runs = self._ledger.prefixes.runs
        asked = changes, runs.changes
        if asked != self._changed[0]:
            self._changed = asked, [*islice(runs.changed_since(changes), _AT_ONCE)]
        return self._changed[1]

    def _look_up_some(self, request: Request, prompt: _Prompt, changed: Sequence[str]) -> bool:
        """Look up the prompt again for these instances; return whether its columns have moved."""
        is_new = False
        for instance_id in changed:
            row = self._table.row(instance_id)
            in_use, cached = self._ledger.prefixes.of_one(request, instance_id)
            if row < 0:
                continue
            if in_use and prompt.in_use is None:
                prompt.in_use, is_new = self._prefix_columns.none(), True
            if prompt.in_use is not None:
                prompt.in_use[row] = in_use
            if cached and prompt.cached is None and not prompt.alone:
                prompt.cached, is_new = self._prefix_columns.none(), True
            if prompt.cached is not None:
                prompt.cached[row] = cached
        return is_new

    def _arranged(self) -> tuple[int, int]:
        return self._table.arranged, self._ledger.prefixes.left

    def _write(self, request: Request, wanted: _Wanted) -> None:
        answer, kept, prompt = wanted.answer, wanted.kept, wanted.prompt
        WANTED.pack_into(
            wanted.block.bytes,
            0,
            request.prompt_tokens,
            request.completion_tokens if answer is None else answer.mean,
            limit_of(request),
            wanted.curve[0],
            0 if prompt.in_use is None else prompt.in_use.buffer_info()[0],
            0 if prompt.cached is None else prompt.cached.buffer_info()[0],
            NOWHERE if kept is None else self._table.row(kept[0]),
            0 if kept is None else kept[1],
            wanted.waits_since,
        )


class PrefixColumns:
    """Columns of tokens by row of the table; None if no instance has any.

    A stretch is as long as the first prompt with it reported, so it may exceed this prompt.
    """

    def __init__(self, runs: PrefixRuns, table: CompiledTable) -> None:
        self._runs: Final = runs
        self._table: Final = table

    def of(
        self, request: Request, arranged: tuple[int, int], *, alone: bool
    ) -> "tuple[array[float] | None, array[float] | None]":
        """Return two columns for a prompt: tokens in use by calls in flight, and cached tokens.

        `arranged` changes whenever the assignment of instances to rows does. `alone`: omit the
        caches.
        """
        in_use: array[float] | None = None
        cached: array[float] | None = None
        for run, marks in self._runs.down(request.prefix):
            kept: RunColumns | None = None
            if len(run.held) >= _MANY and marks == len(run.names):
                kept = self._kept(run, arranged)
            if run.in_use:
                in_use = self._over(in_use, run.in_use, marks, kept.in_use if kept else None)
            if run.held and not alone:
                cached = self._over(cached, run.held, marks, kept.cached if kept else None)
        return in_use, cached

    def none(self) -> "array[float]":
        return array("d", bytes(8 * self._table.count))

    def _over(
        self,
        column: "array[float] | None",
        there: Mapping[str, Held],
        marks: int,
        kept: RunColumn | None,
    ) -> "array[float]":
        """Return the column extended by one run. The prompt has `marks` of the run's marks.

        `there` is what instances have of the run; `kept` its stored column, if any.
        """
        if kept is not None and (column is None or kept.rows == self._table.count):
            return kept.ends[:]
        found = self.none() if column is None else column
        for instance_id, held in there.items():
            row = self._table.row(instance_id)
            if row >= 0:
                ends = held.ends
                found[row] = ends[-1] if len(ends) <= marks else ends[marks - 1]
        return found

    def _kept(self, run: PrefixRun, arranged: tuple[int, int]) -> RunColumns:
        """Return the stored columns of the run, updated."""
        kept = run.columns
        if kept is None or kept.arranged != arranged:
            in_use, cached = RunColumn(self.none()), RunColumn(self.none())
            kept = run.columns = RunColumns(arranged, in_use, cached)
            kept.changed.update(run.held)
        for instance_id in kept.changed:
            row = self._table.row(instance_id)
            if row >= 0:
                _write(kept.in_use, row, run.in_use.get(instance_id))
                _write(kept.cached, row, run.held.get(instance_id))
        kept.changed.clear()
        return kept


def _write(column: RunColumn, row: int, held: Held | None) -> None:
    end = 0 if held is None else held.ends[-1]
    column.rows += (end > 0) - (column.ends[row] > 0)
    column.ends[row] = end
