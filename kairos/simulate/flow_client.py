"""A flow as the client of a simulated pool: its executor, driven in virtual time.

Rows arrive and are gathered in groups as from a table; reading and writing them, and fetching
results of earlier runs, takes no time. Items of a list in an answer are reported while its rest is
still generated, as a live run receives them from a stream. Pure functions are called; others return
null, since a simulation has no effects.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import msgspec

from kairos.core import (
    BYTES_PER_TOKEN,
    SECOND,
    Arrived,
    KairosError,
    PlanDeclared,
    Record,
    Request,
    WorkflowEnded,
)
from kairos.simulate.clock import VirtualClock
from kairos.simulate.engine.engine_calls import EngineCall
from kairos.simulate.flow_answers import answer, answered_prompt, prompt_of, tokens_of
from kairos.simulate.processors import NOTHING_AROUND, SimulatedProcessors, Surroundings
from kairos.simulate.users import MODEL, TENANT
from kairos.simulate.workload.prompt import Prompt, length, prefix_hashes
from kairos.simulate.workload.retries import is_tried_again
from kairos.workflows import (
    TOUCH_AGENT,
    CacheAnswered,
    CallAnswered,
    CallBroke,
    Calling,
    DropRow,
    EndRun,
    EnginesIdle,
    Executor,
    FailRow,
    FetchCached,
    FlowCommand,
    FlowFact,
    FlowLimits,
    GatherRow,
    Generation,
    GroupRead,
    GroupsEnded,
    InputEnded,
    IssueCall,
    ItemsFinished,
    KeepAnswer,
    KeepResult,
    PartialDecode,
    Path,
    Plan,
    PrefixTouched,
    ReadGroups,
    ReadRows,
    RowRead,
    RowsAwaited,
    RunFunction,
    RunProcessor,
    Timeline,
    TouchPrefix,
    WriteRow,
    every_operator,
    plan_work,
)

Run = Callable[[RunFunction], object]
LOOK_US = SECOND  # from one look at whether engines idle to the next

ITEMS_LOOK_US = 10_000  # so long after it was generated an item is told, at most

Generated = Callable[[], Mapping[str, int]]  # tokens that each call's answer has by now


class _Made(msgspec.Struct, frozen=True):
    """A call in progress; a touch of a static prefix is not a row's call."""

    command: IssueCall | TouchPrefix
    workflow: str
    prompt: Prompt
    text: str


class FlowClient:
    """Client that runs a flow.

    `table` yields its rows, by their columns. `run` calls a function, and raises KairosError if it
    fails. `ended` says how the run ended.
    """

    def __init__(
        self,
        plan: Plan,
        limits: FlowLimits,
        table: Iterator[Mapping[str, object]],
        run: Run,
        clock: VirtualClock,
        feed: Callable[[Arrived | PlanDeclared | WorkflowEnded], None],
        *,
        models: Mapping[str, str] | None = None,
        arrives_at: Callable[[int], int] = lambda _: 0,
        around: Surroundings = NOTHING_AROUND,
        results: MutableMapping[str, object] | None = None,
    ) -> None:
        """Create the client.

        `models` maps operators to models other than the only one. `arrives_at` returns when a row
        of the table can be read, in µs, later rows no earlier. `around` has the surroundings other
        than models. `results` has earlier runs' results, by signature; this run's are added.
        """
        self.executor = Executor(plan, limits)
        self.left, self.retries = 1, 0
        self.failed: dict[str, str] = {}
        self.ended: str | None = None
        self.ended_at_us: dict[tuple[int, int], int] = {}  # by stage and row, unless gathered
        self.written: dict[tuple[int, int], Mapping[str, object]] = {}
        self._plan, self._name = plan, plan.declaration.name
        self._run, self._clock, self._feed = run, clock, feed
        self._generations = {
            each.name: each.params
            for each in every_operator(plan.declaration.operators)
            if isinstance(each.params, Generation)
        }
        self._models, self._around = models or {}, around
        self._processors = SimulatedProcessors(clock, around, self.handle_fact)
        self._results: MutableMapping[str, object] = {} if results is None else results
        self.timeline = Timeline()
        self._made: dict[str, _Made] = {}
        # Whoever has the engines says how far answers are; nobody: lists are told whole alone.
        self.generated: Generated = dict
        self._items = AnswerItems(clock, self._generated, self._made.__contains__, self.handle_fact)
        self._touches = 0
        self._is_looking = False  # there is a look to come
        self._facts: deque[FlowFact] = deque()
        self._rows = FlowRows(clock, table, arrives_at, self._facts.append, self._go_on)
        clock.call_at(clock.now(), self._begin)

    def lengths(self, request_id: str) -> tuple[int, int]:
        made = self._made[request_id]
        return length(made.prompt), tokens_of(made.text)

    def engine_call(self, request_id: str, priority: int = 0) -> EngineCall:
        made = self._made[request_id]
        return EngineCall(
            id=request_id,
            prompt=made.prompt,
            completion_tokens=tokens_of(made.text),
            whole=answered_prompt(made.command.body, made.text),
            priority=priority,
        )

    def identified(self, record: Record) -> Record:
        return record

    def finish_call(self, request_id: str, cached_tokens: int) -> None:
        prompt_tokens, completion_tokens = self.lengths(request_id)
        made = self._made.pop(request_id)
        command = made.command
        if isinstance(command, IssueCall):
            tokens = prompt_tokens, completion_tokens, cached_tokens
            self.handle_fact(CallAnswered(command.call, made.text, *tokens))
            return
        self._feed(WorkflowEnded(TENANT, made.workflow))
        if command.number is not None:
            self.handle_fact(PrefixTouched(command.number, cached_tokens))

    def fail_call(self, request_id: str, error: KairosError) -> None:
        made = self._made.pop(request_id)
        if isinstance(made.command, TouchPrefix):
            return
        self.retries += 1
        broke = CallBroke(made.command.call, str(error), retry=is_tried_again(error.status))
        self._clock.call_at(self._clock.now(), partial(self.handle_fact, broke))

    def _generated(self) -> Mapping[str, int]:
        return self.generated()

    def declare(self) -> None:
        """Say what calls its rows will make."""
        work = plan_work(self._plan)
        if work is not None:
            self._feed(PlanDeclared(TENANT, self._name, work))

    def _begin(self) -> None:
        self.declare()
        self._perform(self.executor.start())
        self._go_on()

    def handle_fact(self, fact: FlowFact) -> None:
        self._facts.append(fact)
        self._go_on()

    def _go_on(self) -> None:
        while self._facts:
            fact = self._facts.popleft()
            self.timeline.record_fact(fact, self._clock.now())
            self._perform(self.executor.handle(fact))
        if not self._is_looking and not self.executor.is_engine_busy and self.ended is None:
            self._is_looking = True
            calls = self.executor.figures.calls
            self._clock.call_at(self._clock.now() + LOOK_US, partial(self._look, calls))

    def _look(self, calls: int) -> None:
        """Say that engines had nothing to do since the look before."""
        self._is_looking = False
        if self.executor.figures.calls == calls and not self.executor.is_engine_busy:
            self._facts.append(EnginesIdle())
        self._go_on()

    def _perform(self, commands: list[FlowCommand]) -> None:
        for command in commands:
            match command:
                case ReadRows(count=count):
                    self._rows.read_rows(count)
                case ReadGroups(count=count):
                    self._rows.read_groups(count)
                case IssueCall() | RunFunction() | RunProcessor():
                    self._call(command)
                case TouchPrefix():
                    self._touch(command)
                case FetchCached(call=call, signature=signature):
                    hit, value = signature in self._results, self._results.get(signature)
                    self._facts.append(CacheAnswered(call, hit, value))
                case (
                    KeepResult(signature=signature, value=value, store=True)
                    | KeepAnswer(signature=signature, text=value)
                ):
                    self._results[signature] = value
                case GatherRow() | WriteRow() | FailRow() | DropRow():
                    self._row_ended(command)
                case EndRun(reason=reason):
                    self.ended, self.left = reason, 0
                    self._clock.stop()

    def _call(self, command: Calling) -> None:
        self.timeline.begin_call(command, self._clock.now())
        at = self._clock.now() + command.delay_us
        match command:
            case IssueCall():
                self._clock.call_at(at, partial(self._issue, command))
            case RunProcessor():
                self._clock.call_at(at, partial(self._processors.run, command))
            case RunFunction():
                at += self._around.function_us
                self._clock.call_at(at, lambda: self.handle_fact(self._ran(command)))

    def _ran(self, command: RunFunction) -> FlowFact:
        try:
            took_us = self._around.function_us
            return CallAnswered(command.call, self._run(command), took_us=took_us)
        except KairosError as error:
            return CallBroke(command.call, str(error), retry=False)

    def _row_ended(self, command: GatherRow | WriteRow | FailRow | DropRow) -> None:
        stage = 0
        if isinstance(command, GatherRow):
            self._rows.gather_row(command)
        else:
            stage = command.stage
            self.ended_at_us[stage, command.row] = self._clock.now()
            if isinstance(command, WriteRow):
                self.written[stage, command.row] = command.values
            elif isinstance(command, FailRow):
                self.failed[f"{stage}.{command.row}"] = f"{command.node}: {command.error}"
        self._feed(WorkflowEnded(TENANT, f"{stage}.{command.row}"))

    def _issue(self, command: IssueCall) -> None:
        workflow = f"{command.stage}.{command.row}"
        request_id = f"{workflow}/{command.node}/{command.attempt}"
        text = answer(
            self._generations[command.operator], command.signature, self._around.shortest_answer
        )
        self._made[request_id] = _Made(command, workflow, prompt_of(command.body), text)
        if (wanted := command.items) is not None:
            items = self._finished(command, wanted, text)
            self._items.follow(request_id, command.call, items)
        self._arrive(request_id)

    def _finished(
        self, command: IssueCall, wanted: PartialDecode, text: str
    ) -> list[tuple[int, object]]:
        """Return each item of an answer, and after how many of its tokens it is there."""
        if wanted.parser is None:
            return finished_items(text, wanted.path, wanted.most)
        common = (command.call, command.stage, command.node, command.row, command.attempt)
        argument = wanted.argument

        def parse(prefix: str) -> object:
            asked = RunFunction(
                *common, command.operator, "", 0, wanted.parser or "", {argument: prefix}, None
            )
            try:
                return self._run(asked)
            except KairosError:
                return None

        return parsed_items(text, parse, wanted.most)

    def _touch(self, command: TouchPrefix) -> None:
        self._touches += 1
        request_id = f"touch/{self._touches}"
        self._made[request_id] = _Made(command, request_id, prompt_of(command.body), ".")
        self._clock.call_at(self._clock.now(), partial(self._arrive, request_id))

    def _arrive(self, request_id: str) -> None:
        try:
            self._feed(Arrived(self._request(request_id)))
        except KairosError as error:
            self.fail_call(request_id, error)

    def _request(self, request_id: str) -> Request:
        """Return the request as a gateway would see it."""
        made = self._made[request_id]
        is_call = isinstance(made.command, IssueCall)
        tokens, now = length(made.prompt), self._clock.now()
        limit = made.command.body.get("max_tokens")
        return Request(
            id=request_id,
            tenant=TENANT,
            workflow_id=made.workflow,
            app=self._name,
            agent=made.command.operator if is_call else TOUCH_AGENT,
            model=self._models.get(made.command.operator, MODEL),
            workflow_started_at=now,
            arrived_at=now,
            prompt_tokens=tokens,
            completion_tokens=limit if isinstance(limit, int) else tokens_of(made.text),
            completion_limit=limit if isinstance(limit, int) else None,
            prefix=prefix_hashes(made.prompt),
            prefix_units=tokens,
        )


class FlowRows:
    """Rows of a table as they arrive, and the groups that rows are gathered in."""

    def __init__(
        self,
        clock: VirtualClock,
        table: Iterator[Mapping[str, object]],
        arrives_at: Callable[[int], int],
        put: Callable[[FlowFact], None],
        go_on: Callable[[], None],
    ) -> None:
        """Create it. `put` queues facts; `go_on` is called if nothing else would handle them."""
        self._clock, self._table, self._arrives_at = clock, enumerate(table), arrives_at
        self._put, self._go_on = put, go_on
        self._next_row: tuple[int, Mapping[str, object]] | None = None
        self._awaited = 0  # rows that were asked for and have not arrived
        self._groups: dict[str, list[tuple[int, object]]] = {}
        self._left_groups: Iterator[tuple[int, tuple[str, list[object]]]] | None = None

    def read_rows(self, count: int) -> None:
        """Read `count` rows: the arrived ones now, the others when they arrive."""
        is_waiting, self._awaited = self._awaited > 0, self._awaited + count
        if not is_waiting:
            self._read_arrived()

    def gather_row(self, command: GatherRow) -> None:
        self._groups.setdefault(command.key, []).append((command.row, command.value))

    def read_groups(self, count: int) -> None:
        if self._left_groups is None:
            first = sorted(self._groups.items(), key=lambda group: min(group[1])[0])
            groups = [
                (key, [value for _, value in sorted(rows, key=lambda row: row[0])])
                for key, rows in first
            ]
            self._left_groups = enumerate(iter(groups))
        for _ in range(count):
            read = next(self._left_groups, None)
            if read is None:
                self._put(GroupsEnded())
                return
            number, (key, items) = read
            self._put(GroupRead(number, key, items))

    def _read_arrived(self) -> None:
        while self._awaited:
            if self._next_row is None:
                self._next_row = next(self._table, None)
            if self._next_row is None:
                self._awaited = 0
                self._put(InputEnded())
                return
            at = self._arrives_at(self._next_row[0])
            if at > self._clock.now():
                self._clock.call_at(at, self._rows_arrived)
                self._put(RowsAwaited())
                return
            self._put(RowRead(*self._next_row))
            self._next_row, self._awaited = None, self._awaited - 1

    def _rows_arrived(self) -> None:
        self._read_arrived()
        self._go_on()


def finished_items(text: str, path: Path, most: int) -> list[tuple[int, object]]:
    """Return each item of a list in a JSON text, and after how many tokens it is complete.

    The text is as msgspec writes it.
    """
    value: Any = msgspec.json.decode(text)
    for key in path:
        value = value[key]
    assert isinstance(value, list)
    raw, at, found = text.encode(), 0, []
    if value:
        at = raw.index(msgspec.json.encode(value))
    for item in value[:most]:
        encoded = msgspec.json.encode(item)
        at = raw.index(encoded, at) + len(encoded)
        found.append((-(-at // BYTES_PER_TOKEN), item))
    return found


def parsed_items(text: str, parse: Callable[[str], object], most: int) -> list[tuple[int, object]]:
    """Return the parts of a text as a function finds them, as far as prefixes have the same."""
    raw, found = text.encode(), list[tuple[int, object]]()
    for tokens in range(1, len(raw) // BYTES_PER_TOKEN + 1):
        prefix = raw[: tokens * BYTES_PER_TOKEN].decode(errors="ignore")
        parts = parse(prefix)
        finished = parts[:-1] if isinstance(parts, list) else []
        if len(found) < len(finished):
            found += [(tokens, each) for each in finished[len(found) : most]]
    return found


class AnswerItems:
    """Looks at answers in short turns, as long as they are under way."""

    def __init__(
        self,
        clock: VirtualClock,
        generated: Generated,
        is_open: Callable[[str], bool],
        tell: Callable[[ItemsFinished], None],
    ) -> None:
        self._clock, self._generated, self._is_open, self._tell = clock, generated, is_open, tell

    def follow(self, request_id: str, call: int, items: Sequence[tuple[int, object]]) -> None:
        self._look(request_id, call, items, 0)

    def _look(
        self, request_id: str, call: int, items: Sequence[tuple[int, object]], told: int
    ) -> None:
        if not self._is_open(request_id):
            return
        tokens = self._generated().get(request_id, 0)
        new = [item for _, item in takewhile(lambda each: each[0] <= tokens, items[told:])]
        if new:
            self._tell(ItemsFinished(call, told, new))
        told += len(new)
        if told < len(items):
            again = partial(self._look, request_id, call, items, told)
            self._clock.call_at(self._clock.now() + ITEMS_LOOK_US, again)
