"""Tree of prompt prefixes, in runs of marks, with what instances have cached of each run."""

from array import array
from collections.abc import Iterator, Mapping
from typing import Final

from kairos.core.model import PREFIX_MARKS, Request


class Use:
    """Use of cached runs by a call, with the memory of its answer.

    Only the runs that were not used again since belong to it.
    """

    __slots__ = ("answer", "at", "last", "runs")

    def __init__(self, last: "PrefixRun | None", at: int) -> None:
        self.last = last  # last run used; all runs before it were used, too. None: no mark
        self.at = at
        self.answer = 0  # tokens of the answer
        self.runs = 0  # number of runs that were last used then

    @property
    def is_over(self) -> bool:
        """Return whether neither runs nor an answer belong to it any more."""
        return not self.runs and not self.answer


class Held:
    """Prefix of a run that one instance has cached."""

    def __init__(self, start: int, ends: list[int], use: Use, users: int = 0) -> None:
        self.start = start  # tokens of the prompt before it
        self.ends = ends  # end of each cached stretch, in tokens from the start of the prompt
        self.use = use  # the latest use
        self.users = users  # number of calls in flight that use it; they use all of it

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else self.start

    @property
    def tokens(self) -> int:
        return self.end - self.start


class RunColumn:
    """End of the cached part of a run on each instance, in tokens by row; 0: nothing is cached."""

    def __init__(self, ends: "array[float]") -> None:
        self.ends: Final = ends
        self.rows = 0  # number of entries other than 0


class RunColumns:
    """Columns of a run, maintained by `PrefixColumns`."""

    def __init__(self, arranged: tuple[int, int], in_use: RunColumn, cached: RunColumn) -> None:
        self.arranged: Final = arranged  # assignment of instances to rows at that time
        self.in_use: Final = in_use  # by calls in flight
        self.cached: Final = cached
        self.changed: Final = set[str]()  # ids of instances, since these were written


class PrefixRun:
    """Marks that follow each other in all prompts that contain the first of them and go on."""

    __slots__ = ("before", "behind", "columns", "first", "held", "in_use", "latest", "names")

    def __init__(self, names: tuple[int, ...], first: int, before: "PrefixRun | None") -> None:
        self.names = names  # hash of the prompt up to each mark
        self.first = first  # number of its first mark
        self.before = before
        self.behind: dict[int, PrefixRun] = {}  # runs that follow, by their first mark
        self.held: dict[str, Held] = {}  # by instance id; not empty while the run is in the tree
        self.in_use: dict[str, Held] = {}  # the ones in use by calls in flight
        self.latest = 0  # in a first run: number of the latest change to it and all behind it
        self.columns: RunColumns | None = None

    def split(self, marks: int) -> "PrefixRun":
        """Move the first marks into a run of their own, and return it; this run is the rest.

        So references to this run as the last one of a prompt stay valid. It may be cached nowhere
        afterwards.
        """
        upper = PrefixRun(self.names[:marks], self.first, self.before)
        self.names, self.first, self.before = self.names[marks:], self.first + marks, upper
        self.columns = None
        upper.behind[self.names[0]] = self
        for instance_id, held in [*self.held.items()]:
            if len(held.ends) <= marks:
                upper.held[instance_id] = self.held.pop(instance_id)
                continue
            above = Held(held.start, held.ends[:marks], held.use, held.users)
            held.use.runs += 1
            held.start, held.ends = above.end, held.ends[marks:]
            upper.held[instance_id] = above
            if held.users:
                upper.in_use[instance_id] = above
        return upper


class PrefixRuns:
    """Tree of the runs that instances have cached.

    Callers record in a run who has it cached, and remove it from the tree when no instance does.
    """

    def __init__(self) -> None:
        self.first: dict[int, PrefixRun] = {}  # runs at the start of prompts, by their first mark
        self.changes = 0
        # Instance id -> number of the latest change to its cached runs, in order of these.
        self._changed: dict[str, int] = {}

    def has_changed(self, run: PrefixRun, instance_id: str) -> None:
        """Record a change in what the instance has cached of the run, or in its use by calls."""
        self.changes += 1
        if run.columns is not None:
            run.columns.changed.add(instance_id)
        while run.before is not None:
            run = run.before
        run.latest = self.changes
        self._changed.pop(instance_id, None)
        self._changed[instance_id] = self.changes

    def changed_since(self, changes: int) -> Iterator[str]:
        """Yield the ids of the instances with a later change."""
        for instance_id, latest in reversed(self._changed.items()):
            if latest <= changes:
                return
            yield instance_id

    def forget(self, instance_id: str) -> None:
        """Forget an instance that has nothing cached any more."""
        self._changed.pop(instance_id, None)

    def beginning(self, prefix: tuple[int, ...]) -> tuple[PrefixRun | None, int]:
        """Return the first run of the prompt, and its `latest`.

        While both are the same, nothing has changed for the whole prefix of the prompt.
        """
        first = self.first.get(prefix[0]) if prefix else None
        return first, 0 if first is None else first.latest

    def last(self, prefix: tuple[int, ...]) -> PrefixRun | None:
        """Return the run that the prompt ends with, added if missing; None without marks."""
        before: PrefixRun | None = None
        at = 0
        while at < len(prefix):
            behind = self._behind(before)
            run = behind.get(prefix[at])
            if run is None:
                run = behind[prefix[at]] = PrefixRun(prefix[at:], at, before)
                return run
            same = _same_names(run.names, prefix, at)
            before = run if same == len(run.names) else self._split(run, same)
            at += same
        return before

    def down(self, prefix: tuple[int, ...]) -> list[tuple[PrefixRun, int]]:
        """Return the runs that the prompt begins with, and its number of marks in each."""
        found: list[tuple[PrefixRun, int]] = []
        behind, at = self.first, 0
        while at < len(prefix) and (run := behind.get(prefix[at])) is not None:
            same = _same_names(run.names, prefix, at)
            found.append((run, same))
            if same < len(run.names):
                break
            behind, at = run.behind, at + same
        return found

    def remove(self, run: PrefixRun) -> None:
        del self._behind(run.before)[run.names[0]]

    def _split(self, run: PrefixRun, marks: int) -> PrefixRun:
        """Split a run after this many marks, where prompts differ, and return the first part."""
        behind = self._behind(run.before)
        upper = run.split(marks)
        behind[upper.names[0]] = upper
        if not run.held:
            self.remove(run)
        return upper

    def _behind(self, run: PrefixRun | None) -> dict[int, PrefixRun]:
        return self.first if run is None else run.behind


def _same_names(names: tuple[int, ...], prefix: tuple[int, ...], at: int) -> int:
    """Return how many of the run's marks the prompt has there; it has at least the first."""
    here = prefix[at : at + len(names)]
    if here == names:
        return len(names)
    for number, name in enumerate(here):
        if name != names[number]:
            return number
    return len(here)


def up_from(last: PrefixRun | None) -> Iterator[PrefixRun]:
    """Yield the runs of a prompt, last first."""
    while last is not None:
        yield last
        last = last.before


def ends_of(request: Request, run: PrefixRun, held: Held) -> list[int]:
    """Return the ends of the run's stretches that are not cached yet, by this request."""
    scale = request.prompt_tokens / max(1, request.prefix_units)
    first = run.first + len(held.ends)
    marks = PREFIX_MARKS[first : run.first + len(run.names)]
    if scale == 1.0 and marks[0] >= held.end:
        return [*marks]
    least = held.end
    ends = [int(mark * scale) for mark in marks]  # ascending, so few are below
    return ends if ends[0] >= least else [max(least, end) for end in ends]


def add_ends(found: dict[str, int], there: Mapping[str, Held], marks: int) -> None:
    """Add where the cached part of a run ends on each instance that has no later run in `found`.

    `marks`: number of the run's marks in the prompt.
    """
    for instance_id, held in there.items():
        if instance_id not in found:
            ends = held.ends
            found[instance_id] = ends[-1] if len(ends) <= marks else ends[marks - 1]


def at_most(most: int, ends: Mapping[str, int]) -> Mapping[str, int]:
    if not ends or max(ends.values()) <= most:
        return ends
    return {each: min(end, most) for each, end in ends.items()}
