"""Present state of a running Kairos in a terminal: polled from its operators' port, and shown.

Text of engines is printed without control characters, so that it cannot steer the terminal.
"""

import time
from functools import partial

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kairos.core import SECOND, SetupError
from kairos.gateway import InstanceNow, NowView
from kairos.host import JsonServer
from kairos.settings import TlsFiles

_WIDTH = 140  # where there is no terminal

_BAR = 24  # characters
_STATES = {"in_use": "in use", "not_in_use": "not in use", "draining": "draining"}
_CIRCUITS = {"open": "left alone after failures", "half-open": "on trial after failures"}
_STANDINGS = {
    "policy": "by the policy",
    "overdue": "overdue",
    "returned": "an instance failed it",
    "aside": "aside: to run alone",
}


def watch(url: str, key: str | None, files: TlsFiles, interval_s: float, *, once: bool) -> None:
    """Show the state until interrupted; once with `once` or without a terminal.

    Raises SetupError: No Kairos of this version answers; the message quotes the answer. After the
    first answer, failures are retried.
    """
    console = Console()
    ask = partial(JsonServer(url, files).read, "/ui/data/now", NowView, key)
    view = ask()
    if once or not console.is_terminal:
        console.width = console.width if console.is_terminal else _WIDTH
        console.print(show_now(view, None, view.queue.total))
        return
    before, trouble = view, ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            rows = max(1, console.height - len(view.instances) - 10)
            live.update(show_now(view, before, rows, trouble), refresh=True)
            time.sleep(interval_s)
            try:
                before, view, trouble = view, ask(), ""
            except SetupError as error:
                trouble = str(error)


def show_now(view: NowView, before: NowView | None, rows: int, trouble: str = "") -> Group:
    """Return the view. `before`: start of the rates' interval; `rows` of the queue.

    `trouble` says why the view is outdated.
    """
    parts: list[RenderableType] = [
        _figures(view, before),
        _instances(view.instances),
        _queue(view, rows),
    ]
    if not view.decides:
        parts.insert(0, Text("another process of the pool decides, and knows the rest"))
    if trouble:
        parts.insert(0, _plain(f"what is shown is old: {trouble}", "bold red"))
    return Group(*parts)


def _figures(view: NowView, before: NowView | None) -> Text:
    said = [f"waiting {view.queue.total:,}", f"running {view.running:,}"]
    if view.workflows_open is not None:
        said.append(f"open workflows {view.workflows_open:,}")
    if before is not None and view.at > before.at:
        more = view.ended.get("finished", 0) - before.ended.get("finished", 0)
        said.append(f"finished {max(0, more) * SECOND / (view.at - before.at):.1f}/s")
    said += [f"{outcome} {count:,}" for outcome, count in view.ended.items()]
    said += [f"{code} {count:,}" for code, count in sorted(view.errors.items())]
    return Text("   ".join(said))


def _instances(instances: list[InstanceNow]) -> Table:
    table = Table("Instance", "State", "Calls", "ms/token", "KV memory", box=None, pad_edge=False)
    for each in instances:
        most = "" if each.max_num_seqs is None else f"/{each.max_num_seqs}"
        pace = "" if each.token_s is None or not each.running else f"{each.token_s * 1000:.1f}"
        table.add_row(Text(each.id), _state(each), f"{each.running}{most}", pace, _memory(each))
    return table


def _state(instance: InstanceNow) -> Text:
    troubles = [
        instance.problem,
        _CIRCUITS.get(instance.circuit or ""),
        "short of memory" if instance.short_of_memory else None,
    ]
    said = "; ".join(each for each in troubles if each)
    is_well = instance.state == "in_use" and not said
    return _plain(said or _STATES[instance.state], "green" if is_well else "red")


def _plain(said: str, style: str) -> Text:
    """Return printable text: an engine's answer in it must not control the terminal."""
    return Text("".join(each if each.isprintable() else " " for each in said), style=style)


def _memory(instance: InstanceNow) -> Text:
    memory = instance.memory
    if memory is None:
        return Text("")
    if memory.size is None:
        return Text(f"{memory.held:,} tokens held")
    held, kept = (
        round(_BAR * min(1.0, each / max(1, memory.size))) for each in (memory.held, memory.kept)
    )
    bar = ("#" * held + "+" * kept).ljust(_BAR, ".")[:_BAR]
    peak = max(memory.expected)
    return Text(f"{bar} {memory.held:,} of {memory.size:,}; {peak:,} expected at most in 24 s")


def _queue(view: NowView, rows: int) -> Table:
    table = Table(
        *("", "Workflow", "Agent", "Tenant, class", "Work left", "Waited", "Deadline", "Why here"),
        box=None,
        pad_edge=False,
    )
    for each in view.queue.calls[:rows]:
        deadline = "" if each.deadline_s is None else f"{each.deadline_s:.1f} s"
        table.add_row(
            str(each.place),
            Text(each.workflow_id),
            Text(" / ".join(filter(None, (each.app, each.agent))) or "a call without a name"),
            Text(f"{each.tenant}, {each.service_class}"),
            f"{each.expected_remaining_s:.1f} s",
            f"{each.waited_s:.1f} s",
            deadline,
            _STANDINGS[each.standing],
        )
    return table
