"""`kairos explain`, `kairos export`, `kairos usage`: what happened."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from kairos.cli.options import (
    GATEWAY,
    ApiKeyEnv,
    AsJson,
    LogDirectory,
    OwnCertificate,
    OwnKey,
    ServiceCa,
    outline,
    own_files,
)
from kairos.settings import default_api_key


def explain(
    workflow_id: str,
    url: Annotated[str, typer.Option(help="A running Kairos.")] = GATEWAY,
    api_key_env: ApiKeyEnv = None,
    tls_ca: ServiceCa = None,
    tls_certificate: OwnCertificate = None,
    tls_key: OwnKey = None,
    log: Annotated[
        Path | None, typer.Option(help="Not from a running Kairos, but from its log's directory.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Tenant of the workflow, for --log, if several have the id.")
    ] = None,
    costs: Annotated[
        bool,
        typer.Option(
            "--costs",
            help="Show each call's predicted cost on every instance (default placement), and which "
            "were unavailable. Needs --log.",
        ),
    ] = False,
    as_json: AsJson = False,
    perfetto: Annotated[
        Path | None,
        typer.Option(help="Not shown, but written to this file, for ui.perfetto.dev to open."),
    ] = None,
) -> None:
    """Show a workflow's calls: what led to each, and why it went when and where it did.

    Example: kairos explain WORKFLOW_ID --log DIR --costs
    """
    import msgspec

    from kairos.core import SetupError
    from kairos.host import WallClock
    from kairos.observe import explain_from_log, explain_from_service, read_costs, show_explanation
    from kairos.simulate import write_trace

    if costs and log is None:
        raise SetupError("--costs needs the log: name its directory with --log")
    if log is not None:
        view = explain_from_log(log, tenant, workflow_id)
    else:
        key = default_api_key(api_key_env, os.environ)
        files = own_files(tls_ca, tls_certificate, tls_key)
        view = explain_from_service(url, key, workflow_id, files)
    if perfetto is not None:
        calls = write_trace(perfetto, [view], WallClock().now() if log is None else None)
        typer.echo(f"{perfetto}: {calls} calls")
        return
    weighed = read_costs(log, view) if log is not None and costs else None
    if as_json:
        said = view if weighed is None else {**msgspec.structs.asdict(view), "costs": weighed}
        typer.echo(msgspec.json.encode(said).decode())
    else:
        show_explanation(view, weighed or {})


def export(
    since: Annotated[
        str, typer.Option(help="A duration (30s, 15m, 2h, 7d), a date or an instant; or all.")
    ],
    log: LogDirectory,
    output: Annotated[
        Path, typer.Option(help="The file to write; as gzip, if its name ends in .gz.")
    ] = Path("workflows.jsonl"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            help="Write a trace for ui.perfetto.dev to this file instead of a workflow file, with "
            "the ended calls of each workflow that began then."
        ),
    ] = None,
) -> None:
    """Turn the log of a Kairos into a workflow file, for replay and simulation.

    Workflows that began at that time or later are written, each complete; workflows that began
    before it, or before the log, or have an unfinished call, are left out. With `all`, workflows
    that began before the log are included as they are.

    Example: kairos export --since 24h --log DIR --output day.jsonl
    """
    from kairos.host import WallClock
    from kairos.simulate import export_workflows, parse_since, write_trace_of_log

    since_at = parse_since(since, WallClock().now())
    if perfetto is not None:
        calls = write_trace_of_log(perfetto, log, since_at)
        typer.echo(json.dumps({"calls": calls}) if as_json else f"{perfetto}: {calls} calls")
        return
    exported = export_workflows(log, since_at, output)
    figures = {"calls": exported.calls, "workflows": exported.workflows}
    typer.echo(json.dumps(figures) if as_json else f"{output}:{outline(figures, '  ')}")


def usage(
    log_dir: Annotated[Path, typer.Argument(help="The directory of a serve --log.")],
    since: Annotated[
        str, typer.Option(help="A duration (30s, 15m, 24h, 7d: so long ago), a date or an instant.")
    ] = "all",
    until: Annotated[str, typer.Option(help="The same: before when calls ended.")] = "all",
    by: Annotated[
        list[str] | None,
        typer.Option(
            help=r"Columns to group by \[tenant,app]: tenant, app, agent, key, workflow, model. "
            "May be given several times."
        ),
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write the figures to this file.")] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(help="The same as a Parquet file, with the period; needs pyarrow."),
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="A file with prices (TOML): then there is a cost, too.")
    ] = None,
) -> None:
    """Show who used how much, from a log: calls, tokens, time in the queue, service, cost.

    A call counts when it ends, with all that it used, so periods that follow each other add up.
    Service is the time of a whole instance, as for fair shares. Of calls that failed or were
    refused no tokens are counted; what they had of instances is.

    Example: kairos usage DIR --since 7d --by tenant --prices prices.toml --csv week.csv
    """
    from kairos.cli import usage_parquet
    from kairos.host import WallClock
    from kairos.observe import parse_grouping, read_prices, report_usage, show_usage, write_csv
    from kairos.simulate import parse_since

    now = WallClock().now()
    names = parse_grouping(by or ["tenant,app"])
    since_at, until_at = parse_since(since, now), parse_since(until, now, "end")
    priced = read_prices(prices) if prices is not None else None
    report = report_usage(log_dir, names, since_at, until_at, priced)
    if csv is not None:
        write_csv(csv, report, has_cost=priced is not None)
    currency = priced.currency if priced is not None else None
    if parquet is not None:
        usage_parquet.write_parquet(parquet, report, currency)
    show_usage(report, currency)
