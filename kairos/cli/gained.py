"""`kairos gained`: was it worth it?"""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kairos.cli.options import PLACEMENT_HELP, POLICY_HELP, SERVE, AsJson, LogDirectory
from kairos.core import PLACEMENT_NAMES, POLICY_NAMES, check_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from kairos.gateway import Gained

_EVERY_S = 0.5  # between two words on how far it is


def gained(
    log: LogDirectory,
    since: Annotated[
        str, typer.Option(help="A duration (30s, 15m, 2h: so long ago), a date or an instant.")
    ] = "1h",
    policy: Annotated[
        str, typer.Option(help=f"The policy that served. {POLICY_HELP}")
    ] = SERVE.policy,
    placement: Annotated[str, typer.Option(help=f"The same. {PLACEMENT_HELP}")] = SERVE.placement,
    as_json: AsJson = False,
    progress: Annotated[
        bool, typer.Option("--progress", help="Say on stderr how far it is: shares of 1.")
    ] = False,
) -> None:
    """Compare the policy with others, by the log of a kairos serve.

    The workflows of that time are simulated under the policy that served, and under first come,
    first served, with two placements: engines in turn, and the engine with most free memory.
    Engines' step times are learnt from the log. The simulation's deviation from reality is
    reported, too.

    Example: kairos gained --log DIR --since 1h
    """
    import msgspec

    from kairos.host import WallClock
    from kairos.simulate import measure_gain, parse_since

    check_name("policy", policy, POLICY_NAMES)
    check_name("placement", placement, PLACEMENT_NAMES)
    since_at = parse_since(since, WallClock().now()) or 0
    found = measure_gain(log, since_at, policy, placement, _telling(is_on=progress))
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        _show(found)


def _telling(*, is_on: bool) -> "Callable[[float], None]":
    import time

    last_at = -_EVERY_S

    def tell(share: float) -> None:
        nonlocal last_at
        now = time.monotonic()
        if is_on and now >= last_at + _EVERY_S:
            last_at = now
            print(f"{share:.3f}", file=sys.stderr, flush=True)

    return tell


def _show(found: "Gained") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    console.print(
        f"{found.workflows} workflows, {found.calls} calls, {found.share:.0%} of the tokens, on "
        f"{found.instances} instances"
    )
    table = Table()
    for name in ("policy", "placement"):
        table.add_column(name)
    for name in ("mean, s", "p95, s", "times as long"):
        table.add_column(name, justify="right")
    table.add_column("so it is")
    table.add_row("as it was", "", f"{found.actual_mean_s:.2f}", f"{found.actual_p95_s:.2f}")
    for each in (found.ran, *found.others):
        times = ""
        if each.times is not None:
            times = f"{each.times.mean:.2f} [{each.times.low:.2f}-{each.times.high:.2f}]"
        said = "what served" if each is found.ran else each.verdict
        figures = f"{each.mean_s:.2f}", f"{each.p95_s:.2f}", escape(times)
        table.add_row(each.policy, each.placement, *figures, said)
    console.print(table)
    console.print(
        f"For what served, the model's mean is {found.mean_off:+.1%} off what really happened, its "
        f"p95 {found.p95_off:+.1%}: trust in it is {found.trust}."
    )
