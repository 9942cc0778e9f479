"""A vLLM server as a process: a real vLLM, also for machines without a GPU.

`python -m kairos.engines.vllm` serves a small model of random weights on loopback and prints
`ready URL`. Its answers are noise; how it schedules, caches, preempts and fails is vLLM. `--model`
may be a directory with a real model, such as the one that `python -m examples.minilm` unpacks.
With `--gpu` it is the vLLM of a machine that has one, for a larger model. Other options are passed
to vLLM unchanged, and override those set here.

The server is a group of processes. It ends with this process only if that leads the group, as
`kairos.engines.engine_process` starts it.
"""

import argparse
import contextlib
import http.client
import os
import random
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen, run
from typing import IO, Any, NoReturn

from kairos.core import SetupError

HOST = "127.0.0.1"
VARIABLE = "KAIROS_VLLM"
CHECKOUT = Path(__file__).parents[2]
INSTALLED = CHECKOUT / ".venv-vllm"
MODEL_MAKER = CHECKOUT / "scripts" / "tiny_model.py"
MODELS = ("tiny", "small", "mid", "large", "llama3-8b")
# Usage tells what the cache held.
DEFAULTS = ("--enable-prompt-tokens-details", "--disable-uvicorn-access-log")
RANDOM_WEIGHTS = ("--load-format", "dummy")
# The smallest blocks that vLLM takes on a CPU; 32,768 tokens.
CPU_DEFAULTS = (
    *("--enforce-eager", "--max-model-len", "4096"),
    *("--block-size", "32", "--num-gpu-blocks-override", "1024"),
)
# The models are of bfloat16: without AVX-512 oneDNN has no product of these, and a prompt takes
# five times as long.
FLOAT32 = ("--dtype", "float32")
CPU_INFO = Path("/proc/cpuinfo")
POLL_S = 0.2
_GPUS = "CUDA_VISIBLE_DEVICES"
_COMPLAINT = re.compile(
    r"^(?!.* (?:INFO|WARNING) ).*?\b((?:\w+(?:Error|Exception)|[Ee]rror)[:,] .+)"
)
_COMPLAINTS = 3  # the first say why; those that follow, what came of it


def installed_python() -> Path:
    """Return the interpreter of the virtual environment that has vLLM.

    Raises SetupError: The environment does not exist.
    """
    given = os.environ.get(VARIABLE)
    environment = Path(given) if given else INSTALLED
    # Ours is whole only once it is stamped.
    if not (environment / ("bin/python" if given else ".installed")).is_file():
        raise SetupError(
            f"there is no vLLM in {environment}: run 'make install-vllm' (2 GB), or set {VARIABLE} "
            "to a virtual environment that has it"
        )
    return environment / "bin" / "python"


def serve(ours: argparse.Namespace, options: Sequence[str]) -> NoReturn:
    """Serve until killed or interrupted: with our options, see `main`, and further ones of vLLM.

    Without a GPU it uses one core only: threads of engines that wait for each other's cores cost
    more than they bring. Raises SetupError: The model, GPU or vLLM is missing, or vLLM ended; the
    message has its errors.
    """
    python = installed_python()
    for_cpu = CPU_DEFAULTS if has_avx512() else (*CPU_DEFAULTS, *FLOAT32)
    own, environ = ((), {}) if ours.gpu or ours.own_gpu else (for_cpu, _on_one_core(ours.number))
    if ours.own_gpu:
        environ = {_GPUS: _gpu(ours.number)}
    port = _free_port(ours.port + ours.number - 1 if ours.port else None)
    with tempfile.TemporaryDirectory(prefix="kairos-vllm-") as scratch:
        directory, weights = _model(ours.model, Path(scratch), python)
        command = [
            *(str(python), "-P", "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(directory), "--served-model-name", directory.name),
            *("--host", HOST, "--port", str(port)),
            *(*DEFAULTS, *own, *weights, *options),
        ]
        environ |= {"TMPDIR": scratch}  # where it leaves its sockets behind
        with _running(command, environ) as server:
            assert server.stdout is not None
            complaints: list[str] = []
            reading = threading.Thread(target=_read, args=(server.stdout, complaints), daemon=True)
            reading.start()
            while server.poll() is None and not _is_healthy(port):
                time.sleep(POLL_S)
            if server.poll() is None:
                complaints.clear()  # it got over them
                print("ready", f"http://{HOST}:{port}", flush=True)
            status = server.wait()
            reading.join(POLL_S)  # processes that it leaves behind hold the pipe open
    raise SetupError(f"vLLM ended with status {status}: {'; '.join(complaints) or 'no error told'}")


def _model(name: str, scratch: Path, python: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the model's directory, and vLLM's options for its weights.

    Raises SetupError: The model does not exist.
    """
    made = scratch / name
    if name == "minilm":
        raise SetupError(
            "minilm is made by an example now: 'python -m examples.minilm --unpack minilm' in a "
            "checkout, then --model ./minilm --load-format safetensors --max-model-len 256"
        )
    if name in MODELS:
        run((python, "-P", MODEL_MAKER, name, made), check=True)  # noqa: S603 (ours)
        return made, RANDOM_WEIGHTS
    directory = Path(name).absolute()
    if not (directory / "config.json").is_file():
        raise SetupError(
            f"there is no model '{name}': there are {', '.join(MODELS)}, and directories with a "
            "model's config.json"
        )
    return directory, ()


def _on_one_core(number: int) -> dict[str, str]:
    """Pin this process and its children to a core; return the environment for vLLM."""
    cores = sorted(os.sched_getaffinity(0))
    core = cores[(number - 1) % len(cores)]
    os.sched_setaffinity(0, {core})
    space = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")
    return {"VLLM_CPU_KVCACHE_SPACE": space, "VLLM_CPU_OMP_THREADS_BIND": str(core)}


def _gpu(number: int) -> str:
    """Return the GPU of an instance, among the visible ones."""
    said = os.environ.get(_GPUS)
    if said is None:
        return str(number - 1)
    names = said.split(",")
    if number > len(names):
        raise SetupError(f"{_GPUS} is {said}: there is no GPU for instance {number}")
    return names[number - 1]


def has_avx512() -> bool:
    """Return whether the processor has AVX-512, or is not x86."""
    try:
        flags = re.search(r"^flags\s*:(.*)$", CPU_INFO.read_text(), re.MULTILINE)
    except OSError:  # not Linux
        return True
    return flags is None or " avx512f" in flags[1]


@contextlib.contextmanager
def _running(command: Sequence[str], environ: dict[str, str]) -> Iterator[Popen[str]]:
    """Run a process with additions to the environment; terminate and await it after the block."""
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    options: dict[str, Any] = {
        "env": {**quiet, **os.environ, **environ}, "text": True, "errors": "replace"
    }  # fmt: skip
    process = Popen(  # noqa: S603 (no shell; the options are the user's own)
        command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, **options
    )
    try:
        yield process
    finally:  # not `with process`: it would wait for all that hold the pipe open
        process.terminate()
        process.wait()


def _read(output: IO[str], complaints: list[str]) -> None:
    """Read all output, so that the process does not block; keep its first errors."""
    for line in output:
        found = _COMPLAINT.search(line)
        if found and len(complaints) < _COMPLAINTS and found[1] not in complaints:
            complaints.append(found[1])


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _free_port(wanted: int | None) -> int:
    """Return the wanted port, or a free one below the range of outgoing connections.

    So no connection takes it in the seconds until vLLM does. Raises SetupError: Another program
    uses the wanted port.
    """
    while True:
        port = wanted or random.randrange(15_000, 32_000)  # noqa: S311 (no secret)
        try:
            with socket.create_server((HOST, port)):
                return port
        except OSError as error:
            if wanted:
                raise SetupError(f"port {port} cannot be used: {error.strerror}") from error


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m kairos.engines.vllm", allow_abbrev=False, epilog="Other options are vLLM's."
    )
    parser.add_argument(
        "--model",
        default=MODELS[0],
        help=f"{', '.join(MODELS)}, of random weights; or the directory of a model",
    )
    parser.add_argument(
        "--number", type=int, default=1, help="of this instance, from 1: selects core and port"
    )
    parser.add_argument("--port", type=int, default=0, help="the first instance's; 0: any free one")
    parser.add_argument("--gpu", action="store_true", help="use the vLLM of a GPU [of a CPU]")
    parser.add_argument("--own-gpu", action="store_true", help="--gpu, with a GPU of its own")
    ours, options = parser.parse_known_args()
    # Not the end at once, so that what is left in the file system is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with contextlib.suppress(KeyboardInterrupt):
        try:
            serve(ours, options)
        except SetupError as error:
            sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
