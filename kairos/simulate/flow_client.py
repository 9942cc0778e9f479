"""A flow as the client of a simulated pool: its executor, driven in virtual time.

Items of a list in an answer are reported while its rest is
still generated, as a live run receives them from a stream. Pure functions are called; others return
null, since a simulation has no effects.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import msgspec

from kairos.core import (
    BYTES_PER_TOKEN,
    Arrived,
    KairosError,
    PlanDeclared,
    Record,
    Request,
    WorkflowEnded,
)
from kairos.simulate.clock import VirtualClock
from kairos.simulate.engine.sequence import EngineCall
from kairos.simulate.flow_answers import answer, answered_prompt, prompt_of, tokens_of
from kairos.simulate.processors import NOTHING_AROUND, SimulatedProcessors, Surroundings
from kairos.simulate.users import MODEL, TENANT
from kairos.simulate.workload.prompt import Prompt, length, prefix_hashes
from kairos.simulate.workload.retries import is_tried_again
from kairos.workflows import (
    TOUCH_AGENT,
    Calling,
    FlowInMemory,
    FlowLimits,
    IssueCall,
    Plan,
    RunFunction,
    RunProcessor,
    TouchPrefix,
)

Run = Callable[[RunFunction], object]
ITEMS_LOOK_US = 10_000  # so long after it was generated an item is told, at most

Generated = Callable[[], Mapping[str, int]]  # tokens that each call's answer has by now


class _Made(msgspec.Struct, frozen=True):
    """A call in progress; a touch of a static prefix is not a row's call."""

    command: IssueCall | TouchPrefix
    workflow: str
    prompt: Prompt
    text: str


class FlowClient(FlowInMemory):
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
        super().__init__(plan, limits, table, clock.now, clock.call_at, arrives_at, results)
        self.left, self.retries = 1, 0
        self._name = plan.declaration.name
        self._run, self._clock, self._feed = run, clock, feed
        self._generations = plan.generations
        self._models, self._around = models or {}, around
        self._processors = SimulatedProcessors(clock, around, self._processed)
        self._made: dict[str, _Made] = {}
        # Whoever has the engines says how far answers are; nobody: lists are told whole alone.
        self.generated: Generated = dict
        self._items = AnswerItems(
            clock, self._generated, self._made.__contains__, self.report_items
        )
        self._touches = 0

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
            self.answer_call(command.call, made.text, tokens)
            return
        self._feed(WorkflowEnded(TENANT, made.workflow))
        self.answer_touch(command, cached_tokens)

    def fail_call(self, request_id: str, error: KairosError) -> None:
        made = self._made.pop(request_id)
        if isinstance(made.command, TouchPrefix):
            return
        self.retries += 1
        retry = is_tried_again(error.status)
        broke = partial(self.break_call, made.command.call, str(error), retry=retry)
        self._clock.call_at(self._clock.now(), broke)

    def _generated(self) -> Mapping[str, int]:
        return self.generated()

    def declare(self) -> None:
        """Say what calls its rows will make."""
        work = self.planned_work()
        if work is not None:
            self._feed(PlanDeclared(TENANT, self._name, work))

    def make_call(self, command: Calling | TouchPrefix) -> None:
        if isinstance(command, TouchPrefix):
            self._touch(command)
            return
        at = self._clock.now() + command.delay_us
        match command:
            case IssueCall():
                self._clock.call_at(at, partial(self._issue, command))
            case RunProcessor():
                self._clock.call_at(at, partial(self._processors.run, command))
            case RunFunction():
                at += self._around.function_us
                self._clock.call_at(at, partial(self._call_function, command))

    def on_row_end(self, stage: int, row: int) -> None:
        self._feed(WorkflowEnded(TENANT, f"{stage}.{row}"))

    def on_run_end(self) -> None:
        self.left = 0
        self._clock.stop()

    def _call_function(self, command: RunFunction) -> None:
        try:
            value = self._run(command)
        except KairosError as error:
            self.break_call(command.call, str(error), retry=False)
        else:
            self.answer_call(command.call, value, took_us=self._around.function_us)

    def _processed(self, call: int, value: object, took_us: int) -> None:
        self.answer_call(call, value, took_us=took_us)

    def _issue(self, command: IssueCall) -> None:
        workflow = f"{command.stage}.{command.row}"
        request_id = f"{workflow}/{command.node}/{command.attempt}"
        text = answer(
            self._generations[command.operator], command.signature, self._around.shortest_answer
        )
        self._made[request_id] = _Made(command, workflow, prompt_of(command.body), text)
        if command.items is not None:
            self._items.follow(request_id, command.call, self._finished(command, text))
        self._arrive(request_id)

    def _finished(self, command: IssueCall, text: str) -> list[tuple[int, object]]:
        """Return each item of an answer, and after how many of its tokens it is there."""
        wanted = command.items
        assert wanted is not None
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


def finished_items(text: str, path: Sequence[str | int], most: int) -> list[tuple[int, object]]:
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
        tell: Callable[[int, int, list[object]], None],
    ) -> None:
        self._clock, self._generated, self._is_open, self._tell = clock, generated, is_open, tell

    def follow(
        self, request_id: str, call: int, items: Sequence[tuple[int, object]], told: int = 0
    ) -> None:
        if not self._is_open(request_id):
            return
        tokens = self._generated().get(request_id, 0)
        new = [item for _, item in takewhile(lambda each: each[0] <= tokens, items[told:])]
        if new:
            self._tell(call, told, new)
        told += len(new)
        if told < len(items):
            again = partial(self.follow, request_id, call, items, told)
            self._clock.call_at(self._clock.now() + ITEMS_LOOK_US, again)
