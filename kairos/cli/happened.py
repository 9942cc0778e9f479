"""The `kairos happened` command: look at a past time."""

from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from kairos.cli.options import AsJson, LogDirectory
from kairos.core import SECOND, SetupError

if TYPE_CHECKING:
    from kairos.gateway import Happened

_MOST_S = 24 * 3600


def happened(
    at: Annotated[
        str,
        typer.Argument(
            help="When it begins: 03:12 (the last one), 2025-06-30T03:12, or 2h: so long ago."
        ),
    ],
    log: LogDirectory,
    seconds: Annotated[
        float, typer.Option(min=1, max=_MOST_S, help="How much of it, in seconds.")
    ] = 300,
    as_json: AsJson = False,
) -> None:
    """Show what happened at a past time, from the log of a kairos serve.

    It reports how many calls arrived, ended, waited and ran; which instances joined and left; why
    calls failed; and the slowest calls.

    Example: kairos happened 2025-06-30T03:12 --log DIR --seconds 300
    """
    import msgspec

    from kairos.cli.past import happened
    from kairos.host import WallClock
    from kairos.simulate import parse_since

    now = WallClock().now()
    begins_at = _last(at, now) or parse_since(at, now, "look")
    if begins_at is None:
        raise SetupError("name a time: 03:12, or 2025-06-30T03:12")
    found = happened(log, begins_at, begins_at + round(seconds * SECOND))
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        _show(found)


def _last(clock: str, now: int) -> int | None:
    """Return the last instant with this local time of day; None if the text is not one."""
    try:
        told = time.fromisoformat(clock)
    except ValueError:
        return None
    if ":" not in clock:  # 0312 may be a year
        return None
    today = datetime.fromtimestamp(now / SECOND)
    at = datetime.combine(today, told)
    return round((at if at <= today else at - timedelta(days=1)).timestamp() * SECOND)


def _clock(at: int) -> str:
    return f"{datetime.fromtimestamp(at / SECOND).astimezone():%H:%M:%S}"


def _show(found: "Happened") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("from", "arrived", "finished", "failed", "refused", "waiting", "running")
    for each in found.moments:
        counts = each.arrived, each.finished, each.failed, each.refused, each.waiting, each.running
        table.add_row(_clock(each.at), *map(str, counts))
    console.print(table)
    for change in found.changes:
        console.print(f"{_clock(change.at)} {change.what}", markup=False)
    for why, number in found.failures.items():
        console.print(f"{number} calls: {why}", markup=False)
    for call in found.slowest[:5]:
        console.print(
            f"{call.took_s:.1f} s, {call.waited_s:.1f} s of it waiting: {call.workflow_id} "
            f"({call.agent or 'no agent'}), {call.outcome}",
            markup=False,
        )
