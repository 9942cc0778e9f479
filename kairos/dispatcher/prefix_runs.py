"""What prompts begin with, as a tree of runs of marks, and what instances hold of these."""

import msgspec


class Use:
    """When calls used what an instance holds, and their answers, which take room there too. Of
    what they used, that counts which was not used again since."""

    __slots__ = ("answer", "at", "last", "runs")

    def __init__(self, last: "Run | None", at: int) -> None:
        self.last = last  # all before it was used as well; None: nothing that has a mark
        self.at = at
        self.answer = 0  # tokens
        self.runs = 0  # that were used last then

    @property
    def is_over(self) -> bool:
        """Nothing is left of it."""
        return not self.runs and not self.answer


class Held(msgspec.Struct):
    """The beginning of a run, as one instance holds it."""

    start: int  # tokens of the prompt before it
    ends: list[int]  # of each stretch that is held, tokens from the prompt's beginning
    use: Use  # the last
    users: int = 0  # calls in flight whose prompts have it; they have all of it

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else self.start

    @property
    def tokens(self) -> int:
        return self.end - self.start


class Run:
    """Marks that follow each other in all prompts that have the first of them and go on."""

    __slots__ = ("before", "behind", "first", "held", "in_use", "names", "version")

    def __init__(
        self, names: tuple[int, ...], first: int, before: "Run | None", version: int
    ) -> None:
        self.names = names  # hashes of all that lies before each mark
        self.first = first  # the number of its first mark
        self.before = before
        self.behind: dict[int, Run] = {}  # by their first mark
        self.held: dict[str, Held] = {}  # by id of the instance; of a run in the tree, anywhere
        self.in_use: dict[str, Held] = {}  # of these, by calls in flight
        self.version = version  # another one after each change

    def split(self, marks: int, version: int) -> "Run":
        """Makes the first marks, so many, a run of their own; this one is what is left, so who
        knows it as the last of a prompt still does. There may be nobody who holds it then."""
        upper = Run(self.names[:marks], self.first, self.before, version)
        self.names, self.first, self.before = self.names[marks:], self.first + marks, upper
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


def same_names(names: tuple[int, ...], prefix: tuple[int, ...], at: int) -> int:
    """How many of the run's marks the prompt has there, the first being one of them."""
    here = prefix[at : at + len(names)]
    if here == names:
        return len(names)
    for number, name in enumerate(here):
        if name != names[number]:
            return number
    return len(here)
