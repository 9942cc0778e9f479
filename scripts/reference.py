"""The reference pages of the documentation, made from the code: `python scripts/reference.py`.

`--check` writes nothing, and fails where a page is not what the code says.
"""

import argparse
import ast
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import typer
from prometheus_client.core import Metric

import kairos
from kairos.core import KairosError
from kairos.core.errors import BudgetExceeded

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "reference"
_MADE = "<!-- Made by `python scripts/reference.py`: do not edit. -->\n\n"
_OWN = "An error of Kairos's own. Its log has more."
_BUDGETS = "`budget_calls`, `budget_tokens`, `budget_time`"
_LABELS = (
    ("`instance`", "HOST:PORT of the engine, as in `/admin/instances`"),
    (
        "`outcome`",
        (
            "`finished`, `failed`, `cancelled` (client left, workflow cancelled), `refused` "
            "(queue; by a processor, what is wrong), `expired` (deadline of a flow)"
        ),
    ),
    ("`code`", "the error's code, as in the [HTTP API](http.md#errors)"),
    (
        "`tenant`, `app`",
        "on the operators' port alone: 200 tenants, and 16 apps of each; the rest is `other`",
    ),
    ("`pool`", "of a gateway over several pools: one of `pools`"),
    ("`state`", "of a batch, as in OpenAI's API: of lines how they ended"),
    ("`flow`", "of a tenant, by the name that it has there"),
    ("`kind`", "of an operator: `embed`, `rerank`, `ingest`, `search`"),
    ("`processor`", "HOST:PORT of an engine that embeds or ranks; `collections`: what keeps those"),
    ("`topic`", "of the bus; all inboxes together, and all topics of replies"),
)
_WATCH = (
    (
        "calls wait, and for how long",
        "`kairos_requests_waiting`, `kairos_queue_seconds`",
        "P99 above a tenth of `max_wait_s` for 10 minutes: the pool is too small",
    ),
    (
        "Kairos refuses calls, and why",
        "`kairos_errors_total` by `code`",
        "any `queue_full` or `waited_too_long`; other codes: a client's mistake",
    ),
    (
        "an engine fails",
        "`kairos_instance_trusted`, `kairos_calls_returned_total`",
        "below 1 for 2 minutes: it did not recover by itself",
    ),
    (
        "memory runs out on an engine",
        "`kairos_engine_preemptions_total`, `kairos_engine_kv_used_ratio`",
        "more than 1 preemption in 100 calls: others use the engine, or its limits are wrong",
    ),
    (
        "the prefix cache helps",
        "`kairos_engine_prefix_cached_tokens_total` over `..._prefix_queried_tokens_total`",
        "none: it depends on the workflows. A fall by half means that prompts have changed",
    ),
    (
        "workflows are known",
        "`kairos_workflows_open`, `..._evicted_total`, `..._unlearnt_total`",
        "0 open while calls run; any evicted or unlearnt",
    ),
    (
        "learning keeps up, on Kafka",
        "`kairos_orchestrator_behind_seconds`",
        "above 60 s for 5 minutes",
    ),
)
# What the metric's own text leaves open.
_MORE = {
    "kairos_cell_up": "Of a gateway over several pools. 0: new workflows go to other pools.",
    "kairos_bus_left_out": "Anybody who may write to a topic can send such. They do nothing.",
    "kairos_bus_dead_letters": "The reason is on `kairos.dead-letters`. Those of "
    "agents are in their own logs.",
    "kairos_queue_seconds": "The queue is Kairos's own, before any engine.",
    "kairos_batch_lines": "Processes that have one directory tell the same: take the maximum.",
    "kairos_flow_seconds": "Processes that have one directory tell the same: take the maximum.",
    "kairos_processor_batch_items": "Items: texts, passages, or vectors that are searched for. "
    "Processes that have one directory tell the same: take the maximum.",
    "kairos_processor_seconds": "Processes that have one directory tell the same: take the "
    "maximum.",
    "kairos_tenant_flow_invocations": "Of 200 flows that are kept, those of the most.",
    "kairos_spans_dropped": "With several processes: of the one that is asked.",
    "kairos_waiting_work_seconds": "Their predicted work, over the calls that run at once. To "
    "scale engines by; by model at `/admin/scaling`.",
    "kairos_pool_busy_ratio": "From 0 to 1; of sequences or of KV memory, the greater.",
    "kairos_kv_booked_tokens": "As Kairos counts it: prompts, and answers so far.",
    "kairos_instance_trusted": "An instance that failed gets no calls for a pause, then one to "
    "try (0.5).",
    "kairos_requests_running": "Those that Kairos sent there.",
    "kairos_workflows_idle": "Nobody said that they had ended; `workflow_idle_s` is the limit.",
    "kairos_workflows_evicted": "Nothing is learnt from these. Above 0: more workflows are open "
    "than are followed.",
    "kairos_workflows_unlearnt": "Above 0: learning does not keep up.",
    "kairos_pooled_calls": "Names beyond the bounds are pooled. Above 0: names of agents may "
    "hold ids.",
    "kairos_rank_kendall_tau": "Kendall's tau, from -1 to 1; 1: the same order. Of the policy "
    "`wasserstein-mds`.",
    "kairos_orchestrator_behind_seconds": "0: it has read all.",
}
_MARKUP = re.compile(r"\\(?=\[)")


def cli() -> str:
    """Every command with its options."""
    from kairos.cli.main import app

    command = typer.main.get_command(app)
    return "# Commands\n\n" + "\n".join(_command(command, "kairos"))


def _command(command: Any, name: str) -> Iterator[str]:
    if hasattr(command, "commands"):
        if name != "kairos":
            yield f"## {name}\n\n{_plain(command.help)}\n"
        whole = command.whole() if hasattr(command, "whole") else command.commands
        for each in whole.values():
            yield from _command(each, f"{name} {each.name}")
        return
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    usage = " ".join([name, *(str(each.name).upper() for each in arguments)])
    yield f"## {name}\n\n{_plain(command.help)}\n\n    {usage} [OPTIONS]\n"
    options = [each for each in command.params if each.param_type_name == "option"]
    rows = [(f"`{', '.join(each.opts)}`", _plain(each.help), _default(each)) for each in options]
    if rows:
        yield _table(("option", "meaning", "default"), rows)


def _default(option: Any) -> str:
    default = option.default
    return "" if default is None or default is False or default == () else f"`{default}`"


def _plain(text: str | None) -> str:
    lines = (line.strip() for line in _MARKUP.sub("", text or "").splitlines())
    return "\n".join(lines).strip()


def settings() -> str:
    """What a file may say, from the comments of `config.Settings`."""
    made = (
        "# Settings\n\nThe command line wins over the environment (`KAIROS_PORT` for `port`), and "
        "that over the file (`kairos serve --config kairos.toml`).\n\n"
    )
    made += _table(
        ("setting", "default", "meaning"),
        [
            (f"`{name}`", f"`{default}`", said)
            for name, default, said in _fields("kairos/settings/config.py", "Settings")
        ],
    )
    for title, path, name in (
        ("`[[engine]]`", "kairos/settings/engines.py", "EngineSettings"),
        ("`[[key]]`", "kairos/settings/tenants.py", "KeySettings"),
        ("`[oidc]`", "kairos/settings/oidc.py", "OidcSettings"),
        ("`[batches]`", "kairos/settings/batches.py", "BatchSettings"),
        ("`[flows]`", "kairos/settings/flows.py", "FlowSettings"),
        ("`[retrieval]`", "kairos/settings/retrieval.py", "RetrievalSettings"),
        ("`[telemetry]`", "kairos/settings/telemetry.py", "TelemetrySettings"),
        ("`[[tenant]]`", "kairos/settings/tenants.py", "TenantSettings"),
        ("`[[quota]]`", "kairos/core/entitlements.py", "Quota"),
        ("`[[service_class]]`", "kairos/settings/tenants.py", "ServiceClassSettings"),
    ):
        rows = [(f"`{f}`", f"`{d}`" if d else "required", s) for f, d, s in _fields(path, name)]
        made += f"\n## {title}\n\n{_docstring(path, name)}\n\n"
        made += _table(("setting", "default", "meaning"), rows)
    return made


def events() -> str:
    """The facts and commands of the log, from `events.py`."""
    path = "kairos/core/events.py"
    tree = ast.parse((ROOT / path).read_text())
    made = (
        "# Events\n\nThe log (`--log DIR`), `kairos.events` on Kafka and a replay consist of "
        'records: `{"at": µs, "event": {...}, "commands": [...]}`. `type` says which fact or '
        "command it is. The names on the wire never change their meaning. Fields that end in `_at` "
        "are instants in µs since the epoch; those that end in `_us` are durations in µs.\n"
    )
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name != "Record":
            tag = next((k.value for k in node.keywords if k.arg == "tag"), None)
            said = tag.value if isinstance(tag, ast.Constant) and tag.value is not True else None
            made += _value(path, node.name, said or node.name)
    made += "\n## Values\n\nWhat facts and commands consist of.\n"
    for of, names in _VALUES.items():
        for name in names:
            made += _value(of, name, name, "###")
    return made


_VALUES = {
    "kairos/core/model.py": ("Request", "Sources", "Budget", "Instance"),
    "kairos/core/learnt.py": ("AgentProfile", "RemainingModel", "AgentRank", "Distribution"),
}


def _value(path: str, name: str, title: str, level: str = "##") -> str:
    rows = [
        (f"`{field}`", f"`{default}`" if default else "required", meaning)
        for field, default, meaning in _fields(path, name)
    ]
    table = _table(("field", "default", "meaning"), rows) if rows else ""
    return f"\n{level} {title}\n\n{_docstring(path, name)}\n\n{table}"


def _node(path: str, name: str) -> tuple[ast.ClassDef, list[str]]:
    text = (ROOT / path).read_text()
    found = [n for n in ast.parse(text).body if isinstance(n, ast.ClassDef) and n.name == name]
    return found[0], text.splitlines()


def _docstring(path: str, name: str) -> str:
    return ast.get_docstring(_node(path, name)[0]) or ""


def _fields(path: str, name: str) -> Iterator[tuple[str, str, str]]:
    """Name, default and comment of each field."""
    node, lines = _node(path, name)
    defaults = _defaults(path.removesuffix(".py").replace("/", "."), name)
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            _, _, said = lines[field.end_lineno - 1].partition("  # ")  # type: ignore[operator]
            above = []
            number = field.lineno - 2
            while lines[number].strip().startswith("# "):
                above.insert(0, lines[number].strip()[2:])
                number -= 1
            default = defaults.get(field.target.id, "")
            yield field.target.id, default, " ".join(above) or said


def _defaults(module: str, name: str) -> dict[str, str]:
    """As a user writes them."""
    found = {}
    for field in msgspec.structs.fields(getattr(importlib.import_module(module), name)):
        if field.default is not msgspec.NODEFAULT:
            value = field.default
            if isinstance(value, msgspec.Struct):
                value = f"that of {type(value).__name__}"
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            found[field.name] = "none" if value is None or value == () else shown
        elif field.default_factory is not msgspec.NODEFAULT:
            found[field.name] = "none"
    return found


def http() -> str:
    """The routes of the gateway, from its OpenAPI description."""
    from kairos.batches.openapi import with_batches
    from kairos.gateway.api.openapi import description
    from kairos.workflows.serve.openapi import with_flows

    paths: Mapping[str, Any] = with_flows(with_batches(description()))["paths"]
    rows = [
        (f"`{method.upper()} {path}`", _sentence(route))
        for path, methods in paths.items()
        for method, route in methods.items()
    ]
    return (
        "# HTTP API\n\n`GET /openapi.json` of a running Kairos has the parameters and the schemas. "
        "What Kairos reads of a call is described there; the rest of its body goes to the engine "
        "as it is.\n\n" + _table(("route", "meaning"), rows) + "\n" + _errors()
    )


def _sentence(route: Mapping[str, Any]) -> str:
    return str(route.get("summary") or route.get("description") or "")


def _errors() -> str:
    """Codes of errors, their status, and what they say."""
    rows = []
    for each in _error_classes():
        status = getattr(each, "status", None)
        if status and (status != 500 or each is KairosError):
            said = _OWN if each is KairosError else " ".join((each.__doc__ or "").split())
            code = _BUDGETS if each is BudgetExceeded else f"`{each.code}`"
            rows.append((str(status), code, said))
    rows.sort()
    return (
        "## Errors\n\nThe body has OpenAI's format. `code` says what happened, the header "
        "`x-kairos-reason` too.\n\n" + _table(("status", "code", "meaning"), rows)
    )


def _error_classes() -> list[type[KairosError]]:
    """Those of `kairos.core.errors`, and those of other modules that have a code of their own."""
    for module in pkgutil.walk_packages(kairos.__path__, "kairos."):
        if "-" not in module.name:  # what is compiled is no module
            importlib.import_module(module.name)
    found: list[type[KairosError]] = [KairosError]
    for each in found:
        found += [kind for kind in each.__subclasses__() if kind not in found]
    of_all = KairosError.__module__
    return [
        kind
        for kind in found
        if kind.__module__ == of_all
        or ("code" in vars(kind) and kind.__module__.startswith("kairos."))
    ]


def retries() -> str:
    """How calls are refused, made again and timed out: rules, from what decides them."""
    from kairos.core import MAX_RETRIES
    from kairos.proxy.response_forwarder import ABOUT_CALL, STATUS_RULES
    from kairos.request import ROUTES
    from kairos.request.bodies import LEAST_BYTES_PER_S, SILENCE_S

    engines = [
        (", ".join(str(status) for status in rule.statuses), rule.meaning, rule.then)
        for rule in (*STATUS_RULES, ABOUT_CALL)
    ]
    by_rules: dict[Any, list[str]] = {}
    for path, rules in ROUTES.items():
        by_rules.setdefault(rules, []).append(f"`{path}`")
    routes = [(", ".join(paths), *_cells(rules)) for rules, paths in by_rules.items()]
    fields = _fields("kairos/settings/config.py", "Settings")
    limits = [(f"`{n}`", f"{d} s", said) for n, d, said in fields if n in _TIME_LIMITS]
    least = f"{LEAST_BYTES_PER_S} bytes a second"
    limits += [
        ("fixed", f"{SILENCE_S:g} s", "longest silence of a request's body"),
        ("fixed", least, "least that must come of a body after that time"),
    ]
    return (
        "# Retries and timeouts\n\nWhile a client has nothing of the answer, a call that an engine "
        f"fails is made again on others, at most {MAX_RETRIES} times. Where an engine merely lacks "
        "what is asked for (404, 405, 501), each other one of the model is asked, as a single one "
        "may keep it. Once a part of the answer is out, the error comes as the stream's "
        "last event.\n\n## By route\n\n"
        + _table(_COLUMNS, routes)
        + "\nEach cell is tried by `make kinds` on each of the routes.\n"
        + "\nAll other routes below `/v1` that pass are sent once, as their engine may keep "
        "something of a call; GET, DELETE and `cancel` are sent at once, to one after another.\n"
        "\n## By what an engine does\n\n"
        + _table(("status or fault", "what it says", "what Kairos does"), [*engines, *_FAULTS])
        + "\n## By time\n\n"
        + _table(("setting", "default", "limit"), limits)
        + "\n## By what a client is refused for\n\nOpenAI's and Anthropic's clients try 408, 409, "
        "429 and 5xx twice more by themselves, after `Retry-After` where that is at most a minute. "
        "`x-should-retry: false` asks them not to; it is also set where `Retry-After` is longer."
        "\n\n" + _table(("status", "code", "`Retry-After`", "clients try again"), _told_again())
    )


_COLUMNS = (
    *("route", "waits its turn", "engine fails before its first byte", "engine is silent"),
    *("client leaves", "usage", "stream is torn", "wrong body, key or model"),
)


def _cells(rules: Any) -> tuple[str, ...]:
    """Say what becomes of the calls of a route."""
    form = {"openai": "OpenAI's", "anthropic": "Anthropic's"}[rules.protocol]
    sign = "a ping" if rules.protocol == "anthropic" else "a comment"
    silent = "nothing comes before its first byte"
    return (
        "yes" if rules.needs_memory else "sent at once",
        "another makes it",
        f"{sign} every 5 s, in the queue too" if rules.reads_stream else silent,
        "its engine sees the connection close",
        "counted, of streams too"
        if rules.reads_stream
        else "counted"
        if rules.needs_memory
        else "none",
        f"{form} error as its last event",
        f"400, 401, 404 in {form} form",
    )


_TIME_LIMITS = {
    *("max_wait_s", "stall_s", "answer_s", "longest_answer_s", "suspicion_s", "budget_s"),
}
_FAULTS = (
    ("connection refused", "it is not there", "elsewhere; its circuit opens; nothing is suspected"),
    (
        "kept connection closed before a byte",
        "it had closed it",
        "once more on a new connection, then elsewhere",
    ),
    (
        "connection closed with the call in hand",
        "it may have died of the call",
        (
            "elsewhere; the call is suspected unless more than two failed with it, and waits for "
            "at most `suspicion_s` for an instance by itself"
        ),
    ),
    (
        "no answer within `answer_s` or `stall_s`",
        "nothing about the engine",
        "504 `answer_timeout`; no other attempt, no circuit",
    ),
    ("silent for longer than it ever was", "it has lost the call", "elsewhere"),
    ("a stream that begins with an error", "as its status would", "elsewhere"),
)


def _told_again() -> list[tuple[str, str, str, str]]:
    rows = []
    for each in _error_classes():
        status = getattr(each, "status", None)
        if not status or (status == 500 and each is not KairosError):
            continue
        computed = "retry_after_s" in inspect.signature(each.__init__).parameters
        fixed = f"{each.retry_after_s} s" if each.retry_after_s else ""
        code = _BUDGETS if each is BudgetExceeded else f"`{each.code}`"
        by_itself = status in (408, 409, 429) or status >= 500
        rows.append(
            (
                str(status),
                code,
                "as computed" if computed else fixed,
                _yes(by_itself and each.retries),
            )
        )
    return sorted({*rows})


def _yes(value: bool) -> str:
    return "yes" if value else ""


def metrics() -> str:
    """Every series of `/metrics`, from the service that would serve it."""
    from kairos.batches.service import BatchFigures
    from kairos.cluster import Cells
    from kairos.core import PLACEMENTS, POLICIES, Balancer, Orchestrator
    from kairos.observe import telemetry
    from kairos.observe.tracing.otlp_exporter import CountedExporter
    from kairos.workflows.serve.figures import InvocationFigures

    balancer = Balancer(POLICIES["kairos"], PLACEMENTS["kairos"])
    balancer.estimates.kendall_tau = 1.0
    made = telemetry.Telemetry(lambda: balancer, Orchestrator(), lambda: 0)
    made.count_errors("queue_full", 0)
    made.show(CountedExporter(None))
    made.show(BatchFigures(SimpleNamespace(totals=dict, open_by_state=dict)))
    made.show(Cells(("cell-1",), lambda: 0))
    counts = SimpleNamespace(
        totals=list,
        counts_by_flow=lambda _: [("acme", "reports", "finished", 1, 1.0)],
        processed=lambda: [("embed", "gpu2:8000", "finished", 1, 1, 1.0)],
    )
    flows = InvocationFigures(counts)
    flows.look()
    made.show(flows)
    made.show_to_operators(flows.of_tenants)
    made._bounced.labels("gpu1:8000")  # a label shows once it has a value
    families = made.families_for_operators()
    return (
        "# Metrics\n\n`GET /metrics` of every process is for Prometheus. Those that begin with "
        "`kairos_engine_` are what engines say of themselves; an engine that does not tell one "
        "has no such series. A histogram has the series `_bucket`, `_sum` and `_count`; a counter "
        "counts since the process started. Who asks for OpenMetrics, as Prometheus does, gets "
        "exemplars, too: of each bucket the trace of a call that was recorded.\n\n"
        "## What to watch\n\n"
        + _table(("whether", "look at", "ask for help at"), list(_WATCH))
        + "\n## Labels\n\n"
        + _table(("label", "values"), list(_LABELS))
        + "\n## Of `kairos serve` and `kairos balance`\n\n"
        + _table(("metric", "type", "labels", "meaning"), list(_series(families)))
        + "\n## Of `kairos orchestrate`\n\n"
        + _table(("metric", "type", "meaning"), list(_declared()))
    )


def _series(families: Iterable[Metric]) -> Iterator[tuple[str, ...]]:
    for each in families:
        labels = getattr(each, "_labelnames", None) or {
            label: None for sample in each.samples for label in sample.labels if label != "le"
        }
        total = "_total" if each.type == "counter" else ""
        names = ", ".join(f"`{label}`" for label in labels)
        yield f"`{each.name}{total}`", each.type, names, _meaning(each.name, each.documentation)


def _meaning(name: str, said: str) -> str:
    more = _MORE.get(name)
    return said if more is None else f"{said}. {more}"


def _declared() -> Iterator[tuple[str, str, str]]:
    """Those of the orchestrator, as its source declares them: making one needs Kafka."""
    tree = ast.parse((ROOT / "kairos/cluster/orchestrate/service.py").read_text())
    for node in ast.walk(tree):
        named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if named and node.func.id in ("gauge", "counter"):
            name, said = (ast.literal_eval(each) for each in node.args[:2])
            total = "_total" if node.func.id == "counter" else ""
            yield f"`{name}{total}`", node.func.id, _meaning(name, said)


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in row)} |\n" for row in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def constants() -> str:
    """What steers the default policy and placement, with unit, reason and evidence."""
    from experiments.constants import SUBJECTS

    made = (
        "# Constants\n\nThese numbers steer the default policy and placement. They are no "
        "settings. Each stands in the module that uses it. What half and twice of each is worth, "
        "on workloads that none was chosen on, is in the "
        "[report](../../experiments/REPORT.md#constants-halved-and-doubled) "
        "(`python -m experiments run e32_constants`). Bounds on memory and sizes are in the "
        "[architecture](../../ARCHITECTURE.md).\n"
    )
    for subject, each in SUBJECTS.items():
        rows = [
            (
                f"`{of.name}` in `kairos/{of.module.replace('.', '/')}.py`",
                _shown(of.value),
                f"{of.unit}: {of.what}",
                of.why + (f" ({of.evidence})" if of.evidence else ""),
            )
            for of in each
        ]
        made += f"\n## {subject}\n\n"
        made += _table(("constant", "value", "unit and meaning", "reason and evidence"), rows)
    return made


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


MADE: Mapping[str, Callable[[], str]] = {
    "cli.md": cli,
    "settings.md": settings,
    "http.md": http,
    "retries.md": retries,
    "metrics.md": metrics,
    "events.md": events,
    "constants.md": constants,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where a page is out of date")
    check = parser.parse_args().check
    old = []
    for name, make in MADE.items():
        path, text = PAGES / name, _MADE + make().rstrip() + "\n"
        if check and (not path.exists() or path.read_text() != text):
            old.append(name)
        elif not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    if old:
        sys.exit(f"{', '.join(old)}: not what the code says; run python scripts/reference.py")


if __name__ == "__main__":
    main()
