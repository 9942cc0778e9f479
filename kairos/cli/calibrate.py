"""`kairos calibrate`: measures engines, and writes the profile that a simulation needs of them."""

import asyncio
import json
import os
import platform
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer
import uvloop

from kairos.core import SetupError
from kairos.settings import default_api_key

if TYPE_CHECKING:
    from kairos.core import EngineProfile
    from kairos.simulate import Fit, Measured

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
URL = re.compile(r"https?://[^\s/@,]+")


_Engine = Annotated[
    list[str],
    typer.Option(
        help="The engine itself, not a Kairos: http://HOST:PORT. Repeat for engines that share "
        "a machine: they are measured at the same time, and get one profile."
    ),
]
_MaxNumSeqs = Annotated[int, typer.Option(min=1, max=100_000, help="The engine's setting.")]
_MaxNumBatchedTokens = Annotated[
    int, typer.Option(min=1, max=10_000_000, help="The engine's setting.")
]
_Scheduling = Annotated[Literal["fcfs", "priority"], typer.Option(help="The engine's setting.")]
_KvTokens = Annotated[
    int | None, typer.Option(min=1, help="Tokens that it holds, where it does not tell.")
]
_MaxModelLen = Annotated[
    int | None, typer.Option(min=64, help="The context it takes, where it does not tell.")
]
_Quick = Annotated[bool, typer.Option("--quick", help="Measure one round instead of three.")]
_Unstreamed = Annotated[
    bool,
    typer.Option(
        "--unstreamed",
        help="Use answers that are not streamed, as flows and batches do. On an engine that "
        "shares one core with its server, each streamed token costs time.",
    ),
]
_ApiKeyEnv = Annotated[
    str | None, typer.Option(help="The environment variable that holds the engines' key.")
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print profile and fit, and nothing else.")]


def calibrate(
    engine: _Engine,
    output: Annotated[Path | None, typer.Option(help=r"The file to write \[NAME.toml].")] = None,
    name: Annotated[str | None, typer.Option(help=r"Name of the profile \[the model's].")] = None,
    model: Annotated[str | None, typer.Option(help=r"Model to call \[the engine's first].")] = None,
    max_num_seqs: _MaxNumSeqs = 256,
    max_num_batched_tokens: _MaxNumBatchedTokens = 2048,
    scheduling: _Scheduling = "fcfs",
    kv_tokens: _KvTokens = None,
    max_model_len: _MaxModelLen = None,
    quick: _Quick = False,
    unstreamed: _Unstreamed = False,
    api_key_env: _ApiKeyEnv = None,
    as_json: _AsJson = False,
) -> None:
    """Measure what an engine's steps cost, and write a profile for `kairos simulate`.

    It takes some minutes, during which nobody else may use the engine. The coefficients are fitted
    to the times at which a client receives tokens; the quality of the fit is printed, and stored in
    the file.

    Example: kairos calibrate --engine http://gpu1:8000 --name my-gpu --quick
    """
    from kairos.engines import profile_to_toml
    from kairos.host import atomic_write
    from kairos.proxy import Upstream
    from kairos.simulate import (
        FULL_CALIBRATION,
        QUICK_CALIBRATION,
        MeasuredLimits,
        fit_step_cost,
        measure_engines,
    )

    key = default_api_key(api_key_env, os.environ)
    _check(engine, name)
    _check_writable(output)
    limits = MeasuredLimits(
        max_model_len=max_model_len,
        kv_tokens=kv_tokens,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    upstreams = [Upstream(url, url, key) for url in dict.fromkeys(engine)]

    def tell(line: str) -> None:
        typer.echo(f"kairos: {line}", err=True)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        plan = msgspec.structs.replace(
            QUICK_CALIBRATION if quick else FULL_CALIBRATION, streamed=not unstreamed
        )
        measured = runner.run(measure_engines(upstreams, model, limits, plan, tell))
    found = fit_step_cost(measured.seen)
    name = name or re.sub(r"[^A-Za-z0-9._-]", "-", measured.facts.model).lstrip("._-") or "engine"
    profile = _profile(name, scheduling, measured, found)
    output = output or Path(f"{name}.toml")
    with atomic_write(output) as file:
        file.write(profile_to_toml(profile).encode())
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins({"profile": profile, "fit": found})))
        return
    typer.echo(_table(found))
    typer.echo(f"kairos: wrote {output}")
    if found.bad:
        typer.echo(
            "kairos: the model explains this engine badly (half of the observations are off by "
            f"more than {found.overall.median:.0%}): was the machine busy with something else?",
            err=True,
        )


def _check(engines: list[str], name: str | None) -> None:
    for url in engines:
        if not URL.fullmatch(url.rstrip("/")):
            raise SetupError("--engine takes the URL of an engine, as in http://gpu1:8000")
    if name is not None and not NAME.fullmatch(name):
        raise SetupError("--name takes letters, digits, '.', '_' and '-', 100 at most")


def _check_writable(output: Path | None) -> None:
    """Check the output before minutes are spent on measuring."""
    directory = Path() if output is None else output.parent
    if output is not None and output.is_dir():
        raise SetupError(f"cannot write {output}: it is a directory; name a file")
    if not (directory.is_dir() and os.access(directory, os.W_OK)):
        raise SetupError(f"cannot write in {directory}: name a file elsewhere with --output")


def _profile(
    name: str, scheduling: Literal["fcfs", "priority"], measured: "Measured", found: "Fit"
) -> "EngineProfile":
    from kairos.core import EngineProfile

    room, facts = measured.room, measured.facts
    return EngineProfile(
        name=name,
        source=_source(measured, found),
        measured=True,
        kv_tokens=room.kv_tokens,
        block_size=facts.block_size or 16,
        max_num_seqs=room.max_num_seqs,
        max_num_batched_tokens=room.max_num_batched_tokens,
        max_model_len=room.context_tokens,
        scheduling=scheduling,
        prefix_caching=facts.prefix_caching is not False,
        call_us=found.call_us,
        step=found.step,
    )


def _source(measured: "Measured", found: "Fit") -> str:
    facts = measured.facts
    engines = f"{measured.engines} x {facts.model} on {facts.software}, all busy at once"
    answers = "streamed" if measured.streamed else "whole"
    lines = [
        f"measured by kairos calibrate on {datetime.now(UTC):%Y-%m-%d}: {engines}",
        f"answers came {answers}",
        f"from a client on a host with {os.cpu_count()} x {_cpu()}, load {os.getloadavg()[0]:.1f}",
        "max_num_seqs, max_num_batched_tokens and scheduling are as told to kairos calibrate",
        *_table(found).splitlines(),
    ]
    return "\n".join(lines) + "\n"


def _table(found: "Fit") -> str:
    """Return a table of the model's deviations from the measurements."""
    header = f"{'observations':<24}{'':>4}{'median off':>12}{'worst':>9}{'model/seen':>12}"
    rows = [
        f"{group:<24}{of.observations:>4}{of.median:>12.1%}{of.worst:>9.1%}{1 + of.bias:>12.3f}"
        for group, of in [*found.groups.items(), ("all", found.overall)]
    ]
    return "\n".join([header, *rows, f"R2 of the times: {found.r2:.4f}"])


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()
