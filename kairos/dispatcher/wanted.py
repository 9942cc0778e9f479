"""What the kernel needs to know of requests, kept while they wait. Ours."""

from array import array
from collections.abc import Mapping, Sequence

import msgspec

from kairos.dispatcher.compiled_table import CompiledTable
from kairos.dispatcher.demand import limit_of
from kairos.dispatcher.ledger import Ledger
from kairos.dispatcher.native import NEVER, NOWHERE, WAITS, WAITS_PLACE, WANTED, Block
from kairos.dispatcher.prefix_runs import PrefixRun
from kairos.dispatcher.warm_waits import WarmWaits
from kairos.learnt import Distribution
from kairos.model import Request

_MAX_KEPT = 256  # requests
_NEW = -1  # no instant
_Column = tuple[int, int, int]  # for the kernel: how many, and where the rows and the tokens are
_NOTHING: _Column = 0, 0, 0


class _Prompt(msgspec.Struct):
    """How much of it calls hold on each instance, and is in the cache there."""

    alone: bool  # of one instance: nobody asks what is cached
    changes: tuple[int, int]  # of the table and of the prefix index, when it was looked at
    beginning: tuple[PrefixRun | None, int]  # see `PrefixIndex.of_beginning`
    versions: list[int] | None  # of its stretches; None: not asked for
    in_use: _Column
    cached: _Column
    arrays: "tuple[array[int] | array[float], ...]"


_NO_PROMPT = _Prompt(
    alone=False,
    changes=(0, 0),
    beginning=(None, 0),
    versions=None,
    in_use=_NOTHING,
    cached=_NOTHING,
    arrays=(),
)


class _Wanted:
    """One request."""

    def __init__(self, request: Request) -> None:
        self.request = request  # another may have its id later
        self.block = Block(WANTED.size)
        self.prompt = _NO_PROMPT
        self.answer: Distribution | None = None  # its length, as far as it was learnt
        self.curve = -1, -1  # its row, and how many rows had been others' by then
        self.kept: tuple[str, int] | None = None
        self.waits_since = _NEW


class _Together(msgspec.Struct, frozen=True):
    """Requests that were asked for together; without any of which a curve was to be drawn."""

    requests: Sequence[Request]
    state: tuple[int, ...]  # of all that is known of them, but for their answers
    wanted: Sequence[_Wanted]
    places: "array[int]"


class WantedRequests:
    """By id, longest known first."""

    def __init__(self, ledger: Ledger, table: CompiledTable, waits: WarmWaits) -> None:
        self._ledger, self._table, self._waits = ledger, table, waits
        self._wanted: dict[str, _Wanted] = {}
        self._together = _Together((), (), (), array("q"))

    def places(self, requests: Sequence[Request], at: int) -> "array[int]":
        """Of the requests, from the first on, as `at`; up to the first for which a curve would have
        to be drawn, but for the first of all. A curve is drawn when it is the request's turn: it is
        of calls in flight, too."""
        ledger = self._ledger
        changes = self._table.arranged, ledger.prefixes.changes, ledger.curves.forgotten
        state = *changes, self._waits.changes
        known, answer = self._together, ledger.lengths.completion_tokens
        if known.requests is requests and known.state == state:
            if all(answer(each.request) is each.answer for each in known.wanted):
                return known.places
        places = array("q")
        for each in requests:
            place = self.at(each, at, draws=not places)
            if not place:
                return places
            places.append(place)
        wanted = [self._wanted[each.id] for each in requests]
        # What is kept for a request ends by itself.
        if all(each.kept is None for each in wanted) and ledger.curves.forgotten == changes[2]:
            self._together = _Together(requests, state, wanted, places)
        return places

    def at(
        self,
        request: Request,
        at: int,
        *,
        alone: bool = False,
        draws: bool = True,
    ) -> int:
        """Where the kernel finds what there is to know now, after `CompiledTable.renew`. `alone`:
        of one instance, so that nobody asks what is cached. `draws`: whether a curve may be drawn
        for it; 0: it would have to be."""
        ledger, wanted = self._ledger, self._wanted.get(request.id)
        answer = ledger.lengths.completion_tokens(request)
        if wanted is None or wanted.request is not request:
            if not draws:
                return 0
            if len(self._wanted) >= _MAX_KEPT:
                del self._wanted[next(iter(self._wanted))]
            wanted = self._wanted[request.id] = _Wanted(request)
        is_new = wanted.waits_since == _NEW
        is_drawn = answer is wanted.answer and wanted.curve[1] == ledger.curves.forgotten
        if not (is_drawn or draws):
            return 0
        if request.prefix:
            changes = self._table.arranged, ledger.prefixes.changes
            prompt = wanted.prompt
            if is_new or prompt.changes != changes or prompt.alone > alone:
                is_new |= self._look_up(request, wanted, changes, alone=alone)
        if is_new or not is_drawn:
            row = ledger.curves.row(ledger.lengths.kind(request), request, answer)
            wanted.answer, wanted.curve, is_new = answer, (row, ledger.curves.forgotten), True
        kept, since = ledger.retention.kept_for(request, at), self._waits.since(request.id)
        if since is None:
            since = NEVER
        if is_new or kept != wanted.kept:
            wanted.kept, wanted.waits_since = kept, since
            self._write(request, wanted)
        elif since != wanted.waits_since:
            wanted.waits_since = since
            WAITS.pack_into(wanted.block.bytes, WAITS_PLACE, since)
        return wanted.block.at

    def _look_up(
        self, request: Request, wanted: _Wanted, changes: tuple[int, int], *, alone: bool
    ) -> bool:
        """What is known of the prompt; whether that has changed."""
        prefixes, before, versions = self._ledger.prefixes, wanted.prompt, None
        beginning = prefixes.of_beginning(request)
        if before is not _NO_PROMPT and before.changes[0] == changes[0] and before.alone <= alone:
            is_same = beginning == before.beginning
            if not is_same:
                versions = prefixes.versions(request)
                is_same = versions == before.versions
            if is_same:
                before.changes, before.beginning = changes, beginning
                return False
        in_use, held = self._column(prefixes.in_use(request))
        cached, found = self._column({} if alone else prefixes.match(request))
        if versions is None:
            versions = prefixes.versions(request)
        arrays = *held, *found
        wanted.prompt = _Prompt(alone, changes, beginning, versions, in_use, cached, arrays)
        return True

    def _column(
        self, tokens: Mapping[str, int]
    ) -> "tuple[_Column, tuple[array[int] | array[float], ...]]":
        if not tokens:
            return _NOTHING, ()
        rows, counts = self._table.rows_of(tokens), array("d", tokens.values())
        return (len(rows), rows.buffer_info()[0], counts.buffer_info()[0]), (rows, counts)

    def _write(self, request: Request, wanted: _Wanted) -> None:
        answer, kept, prompt = wanted.answer, wanted.kept, wanted.prompt
        WANTED.pack_into(
            wanted.block.bytes,
            0,
            request.prompt_tokens,
            request.completion_tokens if answer is None else answer.mean,
            limit_of(request),
            wanted.curve[0],
            *prompt.in_use,
            *prompt.cached,
            NOWHERE if kept is None else self._table.row(kept[0]),
            0 if kept is None else kept[1],
            wanted.waits_since,
        )
