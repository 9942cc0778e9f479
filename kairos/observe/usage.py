"""Usage of a pool by tenant and other groups, with its price, computed from its log.

A call counts when it ends, with all that it used. So consecutive periods add up. A report is shown
as a table, or written as CSV without formulas that a spreadsheet would run.

For it the ledger is replayed, and a call's service is computed as for fair shares (`booking.py`).
Attempts that an instance returned count, too, since they used it. A call that was running when its
instance left is measured by the instance's last limits.
"""

import csv
import io
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from pathlib import Path

import msgspec
from rich.console import Console
from rich.console import Group as Lines
from rich.table import Table
from rich.text import Text

from kairos.core import (
    EXPECTED_COMPLETION_TOKENS,
    SECOND,
    Arrived,
    Booking,
    Bounced,
    CallRow,
    CallTracker,
    Cancelled,
    Dispatch,
    Distribution,
    Event,
    Failed,
    Finished,
    FirstToken,
    Instance,
    InstanceJoined,
    InstanceLeft,
    InvalidFile,
    Ledger,
    Outcome,
    Progressed,
    Record,
    Refuse,
    Request,
    SetupError,
    exponential_distribution,
    service_us,
)
from kairos.host import atomic_write, read_toml
from kairos.observe.fact_log import read_facts, read_limits

MAX_GROUPS = 100_000
MAX_WORKFLOWS = 2_000_000  # distinct workflows, each counted once per group and once in total

BY: Mapping[str, Callable[[Request], str | None]] = {
    "tenant": attrgetter("tenant"),
    "app": attrgetter("app"),
    "agent": attrgetter("agent"),
    "key": attrgetter("key"),
    "workflow": attrgetter("workflow_id"),
    "model": attrgetter("model"),
}
Group = tuple[str | None, ...]  # values of the grouping; None: not given by the call

MAX_ROWS = 1_000  # rows of a table; a file has all
_WIDTH = 200  # without a terminal
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of a spreadsheet's formula

# Heading, figure, format in a table, format in a file.
_COLUMNS = (
    ("calls", "calls", "{:,}", "{}"),
    ("failed", "failed", "{:,}", "{}"),
    ("refused", "refused", "{:,}", "{}"),
    ("cancelled", "cancelled", "{:,}", "{}"),
    ("workflows", "workflows", "{:,}", "{}"),
    ("prompt tokens", "prompt_tokens", "{:,}", "{}"),
    ("of these cached", "cached_tokens", "{:,}", "{}"),
    ("answer tokens", "answer_tokens", "{:,}", "{}"),
    ("queue, s", "queue_s", "{:,.1f}", "{:.3f}"),
    ("service, s", "service_s", "{:,.1f}", "{:.3f}"),
    ("KV token-s", "kv_token_s", "{:,.0f}", "{:.3f}"),
)
_COST = ("cost", "cost", "{:,.2f}", "{:.6f}")

_HOUR_US = 3600 * SECOND
_MILLION = 1_000_000
_ANY = exponential_distribution(EXPECTED_COMPLETION_TOKENS)


class CallUse(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of an ended call. Tokens are the engine's, if reported.

    A failed or refused call has no tokens, since it got no answer. A cancelled call has its
    prompt's tokens if its answer had begun, and the answer's as far as reported.
    """

    request: Request
    ended_at: int  # µs
    outcome: Outcome
    queued_us: int  # without the time of returned attempts
    service_us: float  # time of a whole instance
    kv_token_us: float  # tokens in memory times µs: the prompt, and half of the answer
    prompt_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens found in the prefix cache
    answer_tokens: int = 0
    is_measured: bool = True  # False: the limits of one of its instances are unknown


class _Tries(msgspec.Struct):
    """Usage by the attempts at a call so far."""

    us: int = 0  # duration of the attempts before the last
    service_us: float = 0.0
    kv_token_us: float = 0.0
    has_begun: bool = False  # whether the last attempt's answer has begun
    generated: int = 0  # its tokens, as last reported
    is_measured: bool = True


class UsageMeter:
    """Meter of records; stores only the calls in flight.

    Facts about calls that never arrived have no effect, and decreasing times count as the latest
    one.
    """

    def __init__(self) -> None:
        self.at = 0  # time of the last fact, in µs
        self._tracker = CallTracker()
        self._ledger = Ledger(_Unexpected())
        self._limits: dict[str, Instance] = {}  # last known ones, also of instances that left
        self._tries: dict[str, _Tries] = {}  # by request id

    @property
    def under_way(self) -> int:
        return len(self._tracker)

    def observe(self, record: Record) -> list[CallUse]:
        """Process the next record, and return the usage of the calls that it ended."""
        event, at = record.event, max(record.at, self.at)
        self.at = at
        if type(event) is Arrived:  # prefixes are unneeded: each dispatch has its cached tokens
            event = Arrived(msgspec.structs.replace(event.request, prefix=(), prefix_units=0))
        ended = self._tracker.observe(Record(at, event, record.commands))
        self._on_event(event, at)
        for command in record.commands:
            if isinstance(command, Refuse):
                self._release(command.request_id, at)
            else:
                self._dispatch(command, at)
        return [_use(row, self._tries.pop(row.request.id, _Tries())) for row in ended]

    def _on_event(self, event: Event, at: int) -> None:
        if type(event) is Finished:
            self._release(event.request_id, at, event)
        elif type(event) is Failed or type(event) is Cancelled:
            self._release(event.request_id, at)
        elif type(event) is Bounced:
            self._give_back(event.request_id, at)
        elif type(event) is FirstToken:
            self._ledger.record_first_token(event.request_id, at)
        elif type(event) is Progressed:
            self._ledger.record_progress(event.completion_tokens, at)
        elif type(event) is InstanceJoined:
            self._limits[event.instance.id] = event.instance
            self._ledger.add_instance(event.instance)
        elif type(event) is InstanceLeft:
            self._ledger.remove_instance(event.instance_id)

    def _dispatch(self, command: Dispatch, at: int) -> None:
        row = self._tracker.row(command.request_id)
        if row is None:
            return
        lost = self._ledger.booking(command.request_id)
        if lost is not None:  # lost with a process; its duration is unknown
            self._ledger.release_booking(command.request_id, at)
            self._tries.setdefault(command.request_id, _Tries()).us += at - lost.at
        self._ledger.book(row.request, command.instance_id, at)
        booking = self._ledger.booking(command.request_id)
        assert booking is not None
        booking.cached_tokens = command.cached_tokens

    def _give_back(self, request_id: str, at: int) -> None:
        """Record that a call waits again."""
        booking = self._release(request_id, at)
        if booking is not None:
            tries = self._tries[request_id]
            tries.us += at - booking.at
            tries.has_begun, tries.generated = False, 0

    def _release(
        self, request_id: str, at: int, finished: Finished | None = None
    ) -> Booking | None:
        booking = self._ledger.booking(request_id)
        if booking is None:
            return None
        instance_id = booking.instance_id
        instance = self._limits.get(instance_id)
        speed = self._ledger.served.speeds.get(instance_id)  # before `release` learns from the call
        self._ledger.release_booking(request_id, at, finished)
        prompt, _, answer = lengths = booking.lengths(finished)
        took_us = at - booking.at
        tries = self._tries.setdefault(request_id, _Tries())
        tries.has_begun = booking.first_token_at is not None or booking.generated > 0
        tries.generated = booking.generated
        tries.kv_token_us += (prompt + answer / 2) * took_us
        if instance is None or speed is None:
            tries.is_measured = False
        else:
            tries.service_us += service_us(booking, instance, speed, took_us, lengths)
        return booking


def _use(row: CallRow, tries: _Tries) -> CallUse:
    assert row.ended_at is not None
    assert row.outcome is not None
    prompt = cached = answer = 0
    if row.outcome == "finished":
        told, answered = row.prompt_tokens, row.completion_tokens
        prompt = row.request.prompt_tokens if told is None else told
        cached = min(row.cached_tokens or 0, prompt)
        answer = tries.generated if answered is None else answered
    elif row.outcome == "cancelled" and tries.has_begun:
        prompt, answer = row.request.prompt_tokens, tries.generated
    return CallUse(
        request=row.request,
        ended_at=row.ended_at,
        outcome=row.outcome,
        queued_us=max(0, row.queued_us - tries.us),
        service_us=tries.service_us,
        kv_token_us=tries.kv_token_us,
        prompt_tokens=prompt,
        cached_tokens=cached,
        answer_tokens=answer,
        is_measured=tries.is_measured,
    )


class _Unexpected:
    """Lengths without expectations: the usage of calls is known from their ends."""

    def kind(self, request: Request) -> Hashable:  # noqa: ARG002
        return None

    def completion_tokens(self, request: Request) -> Distribution | None:  # noqa: ARG002
        return _ANY  # one curve for all, instead of drawing one for each length

    def latency_us(self, request: Request) -> Distribution | None:  # noqa: ARG002
        return None

    def call_us(self, request: Request) -> int:  # noqa: ARG002
        return 1


class ModelPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of one model.

    Unnamed ones are 0, except that cached tokens default to the prompt's price.
    """

    prompt: float | None = None  # per million uncached prompt tokens
    cached: float | None = None  # per million cached prompt tokens; None: same as `prompt`
    answer: float | None = None  # per million answer tokens
    instance_hour: float | None = None  # per hour of service

    def of(self, use: CallUse) -> float:
        prompt = self.prompt or 0.0
        cached = prompt if self.cached is None else self.cached
        tokens = (use.prompt_tokens - use.cached_tokens) * prompt + use.cached_tokens * cached
        tokens += use.answer_tokens * (self.answer or 0.0)
        return tokens / _MILLION + use.service_us / _HOUR_US * (self.instance_hour or 0.0)


_NONE = ModelPrices()


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """File of prices. A model with its own table uses only that table."""

    currency: str = ""  # shown in the heading of costs
    default: ModelPrices = _NONE  # for models without a table, and calls without a model
    models: Mapping[str, ModelPrices] = {}

    def of(self, use: CallUse) -> float:
        """Return the cost of a call, in `currency`. Raises SetupError: its model has no price."""
        model = use.request.model
        found = self.models.get(model, self.default) if model is not None else self.default
        if found != _NONE:
            return found.of(use)
        if not (use.prompt_tokens or use.answer_tokens or use.service_us):
            return 0.0
        which = f"the model '{model}'" if model is not None else "calls that name no model"
        raise SetupError(f"there is no price for {which}: add it, or a table [default]")


def read_prices(path: Path) -> Prices:
    """Read a file of prices.

    Raises:
        InvalidFile: it cannot be read or is invalid; the message has the reason.
    """
    prices = read_toml(path, Prices)
    if prices.default == _NONE and not prices.models:
        raise InvalidFile(path, "there is no price: give a table [default] or [models.NAME]")
    _check(path, "default", prices.default)
    for name, table in prices.models.items():
        if table == _NONE:
            known = ", ".join(ModelPrices.__struct_fields__)
            raise InvalidFile(path, f"models.{name} has no price; known are: {known}")
        _check(path, f"models.{name}", table)
    return prices


def _check(path: Path, name: str, prices: ModelPrices) -> None:
    for each, value in msgspec.structs.asdict(prices).items():
        if value is not None and not 0 <= value < math.inf:  # nor is it "not a number"
            raise InvalidFile(path, f"{name}.{each} must be 0 or more, and finite")


class UsageFigures(msgspec.Struct):
    calls: int = 0  # ended calls of any outcome
    failed: int = 0
    refused: int = 0
    cancelled: int = 0
    workflows: int = 0
    prompt_tokens: int = 0  # including cached ones
    cached_tokens: int = 0
    answer_tokens: int = 0
    queue_s: float = 0.0
    service_s: float = 0.0  # time of a whole instance
    kv_token_s: float = 0.0  # KV tokens in use times seconds
    cost: float = 0.0  # 0 without prices

    def add(self, use: CallUse, cost: float) -> None:
        self.calls += 1
        if use.outcome != "finished":
            setattr(self, use.outcome, getattr(self, use.outcome) + 1)
        self.prompt_tokens += use.prompt_tokens
        self.cached_tokens += use.cached_tokens
        self.answer_tokens += use.answer_tokens
        self.queue_s += use.queued_us / SECOND
        self.service_s += use.service_us / SECOND
        self.kv_token_s += use.kv_token_us / SECOND
        self.cost += cost


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """Usage in a period, by group. Times in µs since the epoch."""

    by: tuple[str, ...]
    groups: Sequence[tuple[Group, UsageFigures]]  # most service first
    total: UsageFigures
    begins_at: int
    ends_at: int
    log_begins_at: int
    is_cut: bool  # whether the log begins after the period does
    under_way: int  # calls in flight at the end of the period
    unmeasured: int  # calls on instances whose limits are not in the log


def parse_grouping(told: Iterable[str]) -> tuple[str, ...]:
    """Return the names to group by, each once, from comma-separated lists.

    Raises:
        SetupError: a name is unknown.
    """
    names = tuple(dict.fromkeys(each.strip() for text in told for each in text.split(",")))
    for name in names:
        if name not in BY:
            raise SetupError(f"--by: there is no '{name}'; known: {', '.join(BY)}")
    return names


def report_usage(
    directory: Path,
    by: tuple[str, ...],
    since_at: int | None = None,
    until_at: int | None = None,
    prices: Prices | None = None,
) -> UsageReport:
    """Return the usage of calls that ended at `since_at` (µs) or later and before `until_at`.

    Raises:
        SetupError: the log is missing; the period is empty; a model lacks a price; or more than
            `MAX_GROUPS` groups result.
        InvalidFile: a line of the log is invalid.
    """
    if since_at is not None and until_at is not None and since_at >= until_at:
        raise SetupError("--since must be before --until")
    meter, groups, begins_at = UsageMeter(), _Groups(by, prices), -1
    for instance in read_limits(directory):  # they joined in files that were deleted
        meter.observe(Record(0, InstanceJoined(instance)))
    for record in _facts(directory):
        if until_at is not None and max(record.at, meter.at) >= until_at:
            begins_at = record.at if begins_at < 0 else begins_at
            break
        if begins_at < 0:
            begins_at = record.at
        for use in meter.observe(record):
            if since_at is None or use.ended_at >= since_at:
                groups.add(use)
    if begins_at < 0:
        raise SetupError(f"there are no facts in {directory}: name the directory of a log")
    since = begins_at if since_at is None else since_at
    return UsageReport(
        by=by,
        groups=groups.sorted(),
        total=groups.total,
        begins_at=since,
        ends_at=max(since, meter.at) if until_at is None else until_at,
        log_begins_at=begins_at,
        is_cut=since < begins_at,
        under_way=meter.under_way,
        unmeasured=groups.unmeasured,
    )


def _facts(directory: Path) -> Iterator[Record]:
    if not directory.is_dir():
        raise SetupError(f"there is no directory {directory}")
    try:
        yield from read_facts(directory)
    except OSError as error:
        raise SetupError(f"the log in {directory} cannot be read: {error.strerror}") from None


class _Groups:
    def __init__(self, by: tuple[str, ...], prices: Prices | None) -> None:
        self.total = UsageFigures()
        self.unmeasured = 0
        self._by, self._prices = by, prices
        self._keys = [BY[name] for name in by]
        self._figures: dict[Group, UsageFigures] = {}
        self._workflows: set[int] = set()  # hashes; a collision is negligible

    def add(self, use: CallUse) -> None:
        request = use.request
        group = tuple([key(request) for key in self._keys])
        figures = self._figures.get(group)
        if figures is None:
            if len(self._figures) >= MAX_GROUPS:
                raise SetupError(
                    f"there are more than {MAX_GROUPS:,} groups by {', '.join(self._by)}: group by "
                    "less (--by)"
                )
            figures = self._figures[group] = UsageFigures()
        cost = self._prices.of(use) if self._prices is not None else 0.0
        workflow = request.tenant, request.workflow_id
        for each, name in ((figures, hash((workflow, group))), (self.total, hash(workflow))):
            each.add(use, cost)
            each.workflows += self._is_new(name)
        self.unmeasured += not use.is_measured

    def _is_new(self, name: int) -> bool:
        if name in self._workflows:
            return False
        if len(self._workflows) >= MAX_WORKFLOWS:
            raise SetupError("there are too many workflows: name a shorter time (--since, --until)")
        self._workflows.add(name)
        return True

    def sorted(self) -> list[tuple[Group, UsageFigures]]:
        """Return the groups, most service first, ties by name."""
        return sorted(
            self._figures.items(),
            key=lambda each: (-each[1].service_s, tuple(name or "" for name in each[0])),
        )


def show_usage(report: UsageReport, currency: str | None) -> None:
    """Print the report. `currency`: heading of the costs; None: no prices."""
    console = Console()
    console.width = console.width if console.is_terminal else _WIDTH
    console.print(usage_table(report, currency))


def usage_table(report: UsageReport, currency: str | None) -> Lines:
    """Return a table with a row for each group and a total, and notes on what is left out."""
    columns = _COLUMNS if currency is None else (*_COLUMNS, _COST)
    title = f"Calls that ended from {_when(report.begins_at)} to {_when(report.ends_at)}"
    table = Table(title=title, title_justify="left")
    for name in report.by:
        table.add_column(name, overflow="fold")
    for heading, figure, *_ in columns:
        is_cost = figure == "cost" and currency
        table.add_column(
            Text(f"cost, {currency}" if is_cost else heading), justify="right", overflow="fold"
        )

    def add(names: list[str], figures: UsageFigures, *, ends: bool) -> None:
        cells = (form.format(getattr(figures, figure)) for _, figure, form, _ in columns)
        table.add_row(*map(Text, (*names, *cells)), end_section=ends)

    rows = report.groups[:MAX_ROWS]
    for place, (group, figures) in enumerate(rows, start=1):
        add([name or "-" for name in group], figures, ends=place == len(rows))
    add(["all", *[""] * (len(report.by) - 1)], report.total, ends=True)
    return Lines(table, *map(Text, _left_out(report)))


def _left_out(report: UsageReport) -> list[str]:
    lines = []
    if (more := len(report.groups) - MAX_ROWS) > 0:
        lines.append(f"{more:,} more groups have no row here: --csv FILE has all")
    if report.under_way:
        lines.append(f"calls under way at the end, not counted: {report.under_way:,}")
    if report.unmeasured:
        lines.append(
            f"calls on instances whose limits are not in the log: {report.unmeasured:,}; their "
            "service is counted in part or not at all"
        )
    if report.is_cut:
        lines.append(f"the log begins at {_when(report.log_begins_at)}: earlier calls are missing")
    return lines


def _when(at: int) -> str:
    """Return the local time; for simulations, which start at 0, seconds."""
    try:
        if at >= 86_400 * SECOND:
            return datetime.fromtimestamp(at / SECOND).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        pass
    return f"{at / SECOND:.3f} s"


def write_csv(path: Path, report: UsageReport, *, has_cost: bool) -> None:
    """Write all groups as CSV, most service first, without a total.

    A name that a spreadsheet would interpret as a formula is prefixed with an apostrophe.

    Raises:
        SetupError: the file cannot be written.
    """
    columns = (*_COLUMNS, _COST) if has_cost else _COLUMNS
    with atomic_write(path) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        lines = csv.writer(text)
        lines.writerow([*report.by, *(figure for _, figure, *_ in columns)])
        for group, figures in report.groups:
            cells = [form.format(getattr(figures, figure)) for _, figure, _, form in columns]
            lines.writerow([*map(_plain, group), *cells])
        text.detach()  # flushed; the file is closed by who opened it


def _plain(name: str | None) -> str:
    if name is None:
        return ""
    return f"'{name}" if name.startswith(_FORMULA) else name
