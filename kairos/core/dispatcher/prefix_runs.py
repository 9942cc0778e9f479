"""What prompts begin with, as a tree of runs of marks, and what instances hold of these."""

from array import array
from collections.abc import Iterator, Mapping
from typing import Final

from kairos.core.model import PREFIX_MARKS, Request


class Use:
    """When calls used what an instance holds, and their answers, which take room there too. Of
    what they used, that counts which was not used again since."""

    __slots__ = ("answer", "at", "last", "runs")

    def __init__(self, last: "PrefixRun | None", at: int) -> None:
        self.last = last  # all before it was used as well; None: nothing that has a mark
        self.at = at
        self.answer = 0  # tokens
        self.runs = 0  # that were used last then

    @property
    def is_over(self) -> bool:
        """Nothing is left of it."""
        return not self.runs and not self.answer


class Held:
    """The beginning of a run, as one instance holds it."""

    def __init__(self, start: int, ends: list[int], use: Use, users: int = 0) -> None:
        self.start = start  # tokens of the prompt before it
        self.ends = ends  # of each stretch that is held, tokens from the prompt's beginning
        self.use = use  # the last
        self.users = users  # calls in flight whose prompts have it; they have all of it

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else self.start

    @property
    def tokens(self) -> int:
        return self.end - self.start


class RunColumn:
    """Where what each instance holds of a run ends: tokens by row, 0: it holds nothing."""

    def __init__(self, ends: "array[float]") -> None:
        self.ends: Final = ends
        self.rows = 0  # that are not 0


class RunColumns:
    """See `PrefixColumns`, which keeps them."""

    def __init__(self, arranged: tuple[int, int], in_use: RunColumn, cached: RunColumn) -> None:
        self.arranged: Final = arranged  # how instances and rows were
        self.in_use: Final = in_use  # by calls in flight
        self.cached: Final = cached
        self.changed: Final = set[str]()  # ids of instances, since these were written


class PrefixRun:
    """Marks that follow each other in all prompts that have the first of them and go on."""

    __slots__ = ("before", "behind", "columns", "first", "held", "in_use", "latest", "names")

    def __init__(self, names: tuple[int, ...], first: int, before: "PrefixRun | None") -> None:
        self.names = names  # hashes of all that lies before each mark
        self.first = first  # the number of its first mark
        self.before = before
        self.behind: dict[int, PrefixRun] = {}  # by their first mark
        self.held: dict[str, Held] = {}  # by id of the instance; of a run in the tree, anywhere
        self.in_use: dict[str, Held] = {}  # of these, by calls in flight
        self.latest = 0  # number of the latest change to all behind it, if it is the first
        self.columns: RunColumns | None = None

    def split(self, marks: int) -> "PrefixRun":
        """Makes the first marks, so many, a run of their own; this one is what is left, so who
        knows it as the last of a prompt still does. There may be nobody who holds it then."""
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
    """The tree of those that instances hold. Who holds one says so in it, and removes it from here
    when nobody does any more."""

    def __init__(self) -> None:
        self.first: dict[int, PrefixRun] = {}  # by their first mark, those that prompts begin with
        self.changes = 0
        # Instance id -> number of the latest change to what it holds; the latest is the last.
        self._changed: dict[str, int] = {}

    def has_changed(self, run: PrefixRun, instance_id: str) -> None:
        """What the instance holds of it, or whether calls use that."""
        self.changes += 1
        if run.columns is not None:
            run.columns.changed.add(instance_id)
        while run.before is not None:
            run = run.before
        run.latest = self.changes
        self._changed.pop(instance_id, None)
        self._changed[instance_id] = self.changes

    def changed_since(self, changes: int) -> Iterator[str]:
        """Ids of the instances with a later change."""
        for instance_id, latest in reversed(self._changed.items()):
            if latest <= changes:
                return
            yield instance_id

    def forget(self, instance_id: str) -> None:
        """It holds nothing any more."""
        self._changed.pop(instance_id, None)

    def beginning(self, prefix: tuple[int, ...]) -> tuple[PrefixRun | None, int]:
        """The first run of the prompt, and its `latest`. While both are the same, all that the
        prompt begins with is held as it was."""
        first = self.first.get(prefix[0]) if prefix else None
        return first, 0 if first is None else first.latest

    def last(self, prefix: tuple[int, ...]) -> PrefixRun | None:
        """The run that the prompt ends with, made as far as it is not there; None: no marks."""
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
        """The runs that the prompt begins with, and how many marks it has of each."""
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
        """Prompts differ behind so many of its marks. Returns the part before these."""
        behind = self._behind(run.before)
        upper = run.split(marks)
        behind[upper.names[0]] = upper
        if not run.held:
            self.remove(run)
        return upper

    def _behind(self, run: PrefixRun | None) -> dict[int, PrefixRun]:
        return self.first if run is None else run.behind


def _same_names(names: tuple[int, ...], prefix: tuple[int, ...], at: int) -> int:
    """How many of the run's marks the prompt has there, the first being one of them."""
    here = prefix[at : at + len(names)]
    if here == names:
        return len(names)
    for number, name in enumerate(here):
        if name != names[number]:
            return number
    return len(here)


def up_from(last: PrefixRun | None) -> Iterator[PrefixRun]:
    """The runs of a prompt, the last first."""
    while last is not None:
        yield last
        last = last.before


def ends_of(request: Request, run: PrefixRun, held: Held) -> list[int]:
    """Where, by what is said of this request, the stretches of the run end that are not held."""
    scale = request.prompt_tokens / max(1, request.prefix_units)
    first = run.first + len(held.ends)
    marks = PREFIX_MARKS[first : run.first + len(run.names)]
    if scale == 1.0 and marks[0] >= held.end:
        return [*marks]
    least = held.end
    ends = [int(mark * scale) for mark in marks]  # ascending, so few are below
    return ends if ends[0] >= least else [max(least, end) for end in ends]


def add_ends(found: dict[str, int], there: Mapping[str, Held], marks: int) -> None:
    """Of a run of which a prompt has so many marks: where what each instance holds of these ends,
    if nothing behind it is known to be there."""
    for instance_id, held in there.items():
        if instance_id not in found:
            ends = held.ends
            found[instance_id] = ends[-1] if len(ends) <= marks else ends[marks - 1]


def at_most(most: int, ends: Mapping[str, int]) -> Mapping[str, int]:
    if not ends or max(ends.values()) <= most:
        return ends
    return {each: min(end, most) for each, end in ends.items()}
