"""Engines as child processes for as long as a block runs: `engines/engine_process.py`."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from kairos.engines import EngineProcess, end_all, start_process

Kind = Literal["llama", "sim", "vllm"]

MODULES: dict[Kind, str] = {
    "llama": "kairos.engines.llama",
    "sim": "kairos.simulate.standin.server",
    "vllm": "kairos.engines.vllm",
}
TRACES = Path(__file__).parents[3] / "traces"
SCRIPT = TRACES / "standin.json"
LENGTHS = TRACES / "demo-smollm2.jsonl.gz"  # this demo, on the real model
START_S: dict[Kind, float] = {"llama": 60, "sim": 60, "vllm": 300}  # on a busy machine


@asynccontextmanager
async def start_engines(
    kind: Kind,
    count: int,
    *,
    options: Sequence[str] = (),
    on_progress: Callable[[str], None] = lambda _: None,
    on_failure: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[list[str]]:
    """Start engines on free loopback ports; the block runs once all of them serve.

    `options` are further arguments of the engine's module, such as `--model mid`; vLLM's own too.
    `on_progress` receives a message whenever an engine starts or is ready, `on_failure` when a
    ready one has ended; the others continue. Raises SetupError: An engine ended or hung while
    starting; the message has its last output.
    """
    children: list[EngineProcess] = []
    try:
        for number in range(1, count + 1):
            arguments = [*_arguments(kind, number), *options]
            name = f"{kind} engine {number}"
            children.append(await start_process(name, MODULES[kind], arguments, on_failure))
            on_progress(f"{name} is starting")
        urls = []
        for child in children:
            urls.append(await child.url(START_S[kind]))
            on_progress(f"{child.name} is ready at {urls[-1]}")
        yield urls
    finally:
        await end_all(children)


def _arguments(kind: Kind, number: int) -> list[str]:
    if kind == "vllm":
        return ["--number", str(number)]
    files = {"--script": SCRIPT, "--lengths": LENGTHS} if kind == "sim" else {}
    return [word for name, path in files.items() if path.is_file() for word in (name, str(path))]
