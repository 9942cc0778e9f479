"""`kairos agents`: runs agents as processes of their own, and submits tasks to them."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
import typer

from kairos.cli.options import GATEWAY, SERVE, ApiKeyEnv, with_options
from kairos.cli.running import cluster_named
from kairos.cli.running import run as run_loop
from kairos.core import SetupError
from kairos.settings import default_api_key, load_settings

if TYPE_CHECKING:
    from kairos.agents import Result

INPUT_BYTES = 256 << 20
_NO_BUS = (
    "processes meet on Kafka: name it by --bus kafka://HOST:PORT, or KAIROS_BUS (`make kafka` "
    "starts one); --bus memory is for one process alone, such as kairos demo"
)
T = TypeVar("T")

app = typer.Typer(
    help="Run multi-agent applications as processes of their own, over Kafka, and submit tasks.",
    rich_markup_mode="rich",
)

Bus = Annotated[str | None, typer.Option(help="kafka://HOST:PORT[,HOST:PORT]; or KAIROS_BUS.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file with bus, pool and \\[kafka] (TLS, SASL)."),
]


class RunAgents(msgspec.Struct, frozen=True, kw_only=True):
    modules: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE", help="Importable modules (agents.qa) whose `app` is an Application."
        ),
    ]
    bus: Bus = None
    url: Annotated[
        str | None,
        typer.Option(help=f"Where LLM calls go: a Kairos or any such server \\[{GATEWAY}]."),
    ] = None
    llm: Annotated[
        Literal["http", "bus"], typer.Option(help="bus: LLM calls go over Kafka too, to the pool.")
    ] = "http"
    model: Annotated[
        str | None,
        typer.Option(help="Asked for in every call \\[the server's first; over the bus any]."),
    ] = None
    agent: Annotated[
        list[str] | None,
        typer.Option(help="Run only this agent, as APP.AGENT; repeat for each \\[all]."),
    ] = None
    concurrency: Annotated[
        int, typer.Option(min=1, max=10_000, help="Workflows at once, of each agent.")
    ] = 64
    api_key_env: ApiKeyEnv = None
    pool: Annotated[
        str | None, typer.Option(help=f"Pool of engines, for --llm bus \\[{SERVE.pool}].")
    ] = None
    replies: Annotated[
        str | None,
        typer.Option(
            help="Last part of the name of the topic for replies, for --llm bus; processes "
            "may share one \\[the host's name]."
        ),
    ] = None
    config_file: ConfigFile = None


@app.command()
@with_options
def run(given: RunAgents) -> None:
    """Run the agents of one or more applications until SIGTERM or Ctrl-C.

    Start the same command again, here or on other hosts, to share the work: an agent's tasks are
    divided among all processes that run it, each workflow's in order. A process that ends, or is
    killed, leaves what it has not done to the others.

    Examples:

    kairos agents run agents.qa --bus kafka://127.0.0.1:9092 --url http://127.0.0.1:8000

    kairos agents run agents.qa agents.rg --bus kafka://k1:9092,k2:9092 --llm bus --pool chat

    kairos agents run agents.cg --agent cg.engineer --concurrency 8   (one role, KAIROS_BUS is set)
    """
    if given.llm == "bus" and (given.url is not None or given.api_key_env is not None):
        raise SetupError("--llm bus sends LLM calls over Kafka: leave out --url and --api-key-env")
    api_key = default_api_key(given.api_key_env, os.environ)
    settings = load_settings(given.config_file, os.environ, {"bus": given.bus, "pool": given.pool})
    cluster = cluster_named(settings, _NO_BUS)
    logging.basicConfig(level=logging.INFO, format="kairos: %(message)s")
    from kairos.agents import SubmissionPlan, choose_inboxes, load_application, run_agents

    _import_from_here()
    applications = tuple(load_application(module) for module in given.modules)
    plan = SubmissionPlan(
        applications=applications,
        inboxes=choose_inboxes(applications, given.agent or ()),
        cluster=cluster,
        concurrency=given.concurrency,
        url=None if given.llm == "bus" else given.url or GATEWAY,
        api_key=api_key,
        model=given.model,
        pool=settings.pool,
        replies=given.replies,
    )
    try:
        run_loop(_until_told(run_agents(plan, _say)))
    except asyncio.CancelledError:
        _say("stopped; what was not done waits on the bus")


@app.command()
def submit(
    module: Annotated[
        str, typer.Argument(metavar="MODULE", help="The application's module, such as agents.qa.")
    ],
    task: Annotated[
        str,
        typer.Argument(
            metavar="JSON|@FILE|-",
            help="A JSON object; or a file (or standard input) that holds one, or one a line.",
        ),
    ],
    bus: Bus = None,
    msg_id: Annotated[
        str | None, typer.Option(help="The workflow's id \\[a new one]; for one task only.")
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds after which nobody begins work on it any more."),
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for results; 0: only print the ids.")
    ] = 300,
    config_file: ConfigFile = None,
) -> None:
    """Submit tasks to an application, and print each result as a line of JSON when it arrives.

    The exit status is 1 if a workflow failed, or has no result in time; it continues, though.

    Examples:

    kairos agents submit agents.qa '{"text": "What is 6 times 7?"}' --bus kafka://127.0.0.1:9092

    kairos agents submit agents.rg @topics.jsonl --deadline 60 --wait 120

    generate-tasks | kairos agents submit agents.cg - --wait 0
    """
    values = _values(task)
    if msg_id is not None and len(values) > 1:
        raise SetupError(f"--msg-id names one workflow, and these are {len(values)} tasks")
    settings = load_settings(config_file, os.environ, {"bus": bus})
    cluster = cluster_named(settings, _NO_BUS)
    from kairos.agents import load_application, submit_tasks

    _import_from_here()
    application = load_application(module)
    failed = []

    def show(result: "Result") -> None:
        failed.extend([result.workflow_id] if "error" in result.value else [])
        line = {"msg_id": result.workflow_id, "app": result.app, "value": result.value}
        typer.echo(msgspec.json.encode(line))

    try:
        submitting = submit_tasks(
            application, values, cluster, show, msg_id=msg_id, deadline_s=deadline, wait_s=wait
        )
        missing = run_loop(_until_told(submitting))
    except asyncio.CancelledError:
        raise typer.Exit(130) from None
    if wait == 0:
        typer.echo("\n".join(missing))
        return
    if missing:
        typer.echo(
            f"kairos: {len(missing)} of {len(values)} had no result after {wait:g} s", err=True
        )
    if missing or failed:
        raise typer.Exit(1)


def _values(text: str) -> tuple[dict[str, Any], ...]:
    """Return the tasks from the command line, a file, or standard input."""
    if text == "-":
        where, raw = "standard input", sys.stdin.buffer.read(INPUT_BYTES + 1)
    elif text.startswith("@"):
        where = text[1:]
        try:
            with Path(where).open("rb") as file:
                raw = file.read(INPUT_BYTES + 1)
        except OSError as error:
            raise SetupError(f"{where}: {error.strerror}") from None
    else:
        where, raw = "the task", text.encode()
    if len(raw) > INPUT_BYTES:
        raise SetupError(f"{where} exceeds {INPUT_BYTES} bytes: submit it in parts")
    try:
        return (_object(raw),)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        lines = [line for line in raw.splitlines() if line.strip()]
        if len(lines) < 2:
            raise SetupError(f"{where} is not a JSON object: {error}") from None
    return tuple(_numbered(where, number, line) for number, line in enumerate(lines, 1))


def _numbered(where: str, number: int, line: bytes) -> dict[str, Any]:
    try:
        return _object(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SetupError(f"{where}, task {number}, is not a JSON object: {error}") from None


def _object(raw: bytes) -> dict[str, Any]:
    return msgspec.json.decode(raw, type=dict[str, Any])


def _say(text: str) -> None:
    typer.echo(f"kairos: {text}")


def _import_from_here() -> None:
    """The directory that we are in comes first, as with `python -m`."""
    sys.path.insert(0, str(Path.cwd()))


async def _until_told(main: Coroutine[Any, Any, T]) -> T:
    """Await it. Raises asyncio.CancelledError: SIGTERM or SIGINT came first."""
    task = asyncio.create_task(main)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task
