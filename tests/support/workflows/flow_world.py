"""A world around an executor of flows: a table, engines that answer by a script, a cache, a journal
with group commit. Facts arrive in an order that is drawn; a crash loses what was not committed."""

import random
from itertools import pairwise

import msgspec

from kairos.workflows import FlowLimits, IssueCall, RunFunction, RunProcessor, TouchPrefix
from kairos.workflows.compile.values import Missing, part
from kairos.workflows.execute.commands import (
    DropCall,
    DropHeld,
    DropRow,
    EndRun,
    FailRow,
    FetchCached,
    GatherRow,
    KeepAnswer,
    KeepResult,
    ReadGroups,
    ReadRows,
    WriteRow,
)
from kairos.workflows.execute.executor import Executor
from kairos.workflows.execute.facts import (
    CacheAnswered,
    CallAnswered,
    CallBroke,
    GroupRead,
    GroupsEnded,
    InputEnded,
    ItemsFinished,
    Known,
    RowRead,
    RowsAwaited,
)
from tests.support.simulate.standin import processed


class Journal:
    """What is committed of a run."""

    def __init__(self):
        self.results = {}  # (stage, node, row) -> Known
        self.passing = set()  # keys of results that are forgotten with their rows
        self.ended = {}  # (stage, row) -> the command that ended it
        self.cache = {}

    def commit(self, command):
        if isinstance(command, KeepResult):
            key = (command.stage, command.node, command.row)
            self.results.setdefault(key, Known(command.signature, command.value))
            if command.until_end:
                self.passing.add(key)
            if command.store:
                self.cache[command.signature] = command.value
            return
        stage = 0 if isinstance(command, GatherRow) else command.stage
        assert (stage, command.row) not in self.ended, "a row ends once"
        self.ended[stage, command.row] = command
        if not isinstance(command, FailRow):
            for key in [key for key in self.passing if key[::2] == (stage, command.row)]:
                self.passing.discard(key)
                del self.results[key]

    def known(self, stage, row):
        return {n: value for (s, n, r), value in self.results.items() if (s, r) == (stage, row)}

    def groups(self):
        """By key, in order of their first rows."""
        found = {}
        gathered = [e for e in self.ended.values() if isinstance(e, GatherRow)]
        for each in sorted(gathered, key=lambda each: each.row):
            found.setdefault(each.key, []).append(each.value)
        return list(found.items())


class InTurn:
    """Facts of one call, of which each comes after the one before."""

    def __init__(self, facts):
        self.facts = facts


class FlowWorld:
    """`answer(messages, attempt)`: a text, or TimeoutError or ValueError: the call breaks.
    `process(kind, arguments, attempt)`: the same of processors."""

    def __init__(
        self, plan, rows, answer, *,
        functions=None, process=None, journal=None, limits=None, seed=0,
    ):  # fmt: skip
        self.plan, self.rows, self.answer = plan, rows, answer
        self.process = process or (lambda kind, arguments, _: processed(kind, arguments))
        self.functions = functions or {}
        self.journal = journal or Journal()
        self.limits = limits or FlowLimits(capacity=2)
        self.random = random.Random(seed)
        self.executor = Executor(plan, self.limits)
        self.pending = []  # facts that may arrive next
        self.written = []  # commands for the journal, in order, not committed yet
        self.issued, self.ran, self.asked = [], [], []  # of engines, functions, processors
        self.touched, self.dropped = [], []
        self.in_flight = self.most_in_flight = self.most_open = 0
        self.left = {
            0: [n for n in range(len(rows)) if (0, n) not in self.journal.ended], 1: None
        }  # fmt: skip
        self.end, self.ended = None, set()
        self.lost = 0  # results that were not committed
        self.log = []

    def run(self, crash_after=None):
        """True if it ended; False if it crashed after so many facts."""
        self._do(self.executor.start())
        facts = 0
        while self.end is None:
            if crash_after is not None and facts >= crash_after:
                self.crash()
                return False
            assert self.pending, "nothing is under way, and it has not ended"
            fact = self.next_fact()
            self.in_flight -= isinstance(fact, CallAnswered | CallBroke)
            facts += 1
            self._do(self.executor.handle(fact))
        self.commit(len(self.written))
        return True

    def next_fact(self):
        """Any of those that may arrive next."""
        at = self.random.randrange(len(self.pending))
        fact = self.pending[at]
        if isinstance(fact, InTurn) and len(fact.facts) > 1:
            return fact.facts.pop(0)
        del self.pending[at]
        if isinstance(fact, InTurn):
            return fact.facts[0]
        return fact() if callable(fact) else fact

    def crash(self):
        self.commit(self.random.randint(0, len(self.written)))
        self.lost = sum(isinstance(each, KeepResult) for each in self.written)

    def commit(self, count):
        for command in self.written[:count]:
            self.journal.commit(command)
        del self.written[:count]

    def _do(self, commands):
        for command in commands:
            self.log.append(command)
            match command:
                case ReadRows(count=count) | ReadGroups(count=count):
                    self._read(int(isinstance(command, ReadGroups)), count)
                case IssueCall():
                    self.issued.append(command)
                    self._flies(command)
                case RunFunction():
                    self.ran.append(command)
                    self._flies(command)
                case RunProcessor():
                    self.asked.append(command)
                    self._flies(command)
                case FetchCached(call=call, signature=signature):
                    hit = signature in self.journal.cache
                    value = self.journal.cache.get(signature)
                    self.pending.append(CacheAnswered(call, hit, value))
                case TouchPrefix() | DropHeld():
                    told = self.touched if isinstance(command, TouchPrefix) else self.dropped
                    told.append(command)
                case EndRun():
                    self.end = command.reason
                case _:
                    self._keep(command)
        # Group commit: now and then.
        if len(self.written) > 5 and not self.random.randrange(4):
            self.commit(len(self.written))
        self.most_open = max(self.most_open, self.executor.figures.open)

    def _keep(self, command):
        """A result, or the end of a row."""
        if isinstance(command, KeepAnswer):
            self.journal.cache[command.signature] = command.text
        if isinstance(command, KeepAnswer | DropCall):
            return
        key = (getattr(command, "stage", 0), command.row)
        assert key not in self.ended, "nothing comes after the end of a row"
        if not isinstance(command, KeepResult):
            self.ended.add(key)
        self.written.append(command)

    def _read(self, stage, count):
        if stage == 1 and self.left[1] is None:
            self.commit(len(self.written))
            groups = self.journal.groups()
            self.left[1] = [n for n in range(len(groups)) if (1, n) not in self.journal.ended]
        rows = self.left[stage]
        if not self.random.randrange(3):
            self.pending.append(RowsAwaited())
        for number in rows[:count]:
            known = self.journal.known(stage, number)
            if stage == 0:
                self.pending.append(RowRead(number, self.rows[number], known))
            else:
                key, items = self.journal.groups()[number]
                self.pending.append(GroupRead(number, key, items, known))
        if count > len(rows):
            # The end is told after the rows before it.
            self.pending.append(lambda: self._ended(stage))
        self.left[stage] = rows[count:]

    def _ended(self, stage):
        waits = [f for f in self.pending if isinstance(f, RowRead | GroupRead)]
        if waits:
            self.pending.remove(waits[0])
            self.pending.append(lambda: self._ended(stage))
            return waits[0]
        return InputEnded() if stage == 0 else GroupsEnded()

    def _flies(self, command):
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        fact = self._fact(command)
        told = []
        if isinstance(command, IssueCall) and command.items is not None:
            told = self._item_facts(command)
        self.pending.append(InTurn([*told, fact]))

    def _item_facts(self, command):
        """What an answer's list has by and by, told before it; now and then of an answer that then
        broke off, or that was another one."""
        try:
            told = self.answer(command.body["messages"], command.attempt)
            found = part(msgspec.json.decode(told), command.items.path)
            items = found if isinstance(found, list) else []
        except (TimeoutError, ValueError, Missing):
            items = ["a b", "never said"]
        most = [*items, "cut"] if not self.random.randrange(4) else items
        ends = [at + 1 for at in range(len(most)) if self.random.randrange(3)]
        return [
            ItemsFinished(command.call, first, list(most[first:end]))
            for first, end in pairwise([0, *ends])
        ]

    def _fact(self, command):
        if isinstance(command, RunFunction):
            return CallAnswered(command.call, self.functions[command.function](**command.arguments))
        try:
            if isinstance(command, RunProcessor):
                return self._processed(command)
            text = self.answer(command.body["messages"], command.attempt)
        except TimeoutError as error:
            return CallBroke(command.call, str(error), retry=True)
        except ValueError as error:
            return CallBroke(command.call, str(error), retry=False)
        return CallAnswered(command.call, text, prompt_tokens=7, completion_tokens=3)

    def _processed(self, command):
        value = self.process(command.kind, command.arguments, command.attempt)
        return CallAnswered(command.call, value)

    def table(self):
        """Of each row that ended, how."""
        found = {"written": {}, "failed": set(), "dropped": set()}
        for key, command in self.journal.ended.items():
            match command:
                case WriteRow(values=values):
                    found["written"][key] = values
                case FailRow():
                    found["failed"].add(key)
                case DropRow():
                    found["dropped"].add(key)
        return found
