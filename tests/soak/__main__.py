"""`python -m tests.soak`: Kairos under load for as long as one likes, while its engines are hurt.

What it wrote is kept where something does not hold. Ctrl-C shows what was seen so far.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from tests.soak import verdict
from tests.soak.engine import KINDS
from tests.soak.soak import Soak


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS, default="standin", help="of engines [standin]")
    parser.add_argument("--engines", type=int, default=3, help="how many [3]")
    return parser.parse_args()


def main() -> None:
    options = _arguments()
    directory = Path(tempfile.mkdtemp(prefix="kairos-soak-"))
    soak = Soak(
        directory,
        seconds=options.seconds,
        seed=options.seed,
        kind=KINDS[options.kind],
        engines=options.engines,
        show=lambda line: print(line, flush=True),
    )
    try:
        wrong = asyncio.run(soak.run())
    except KeyboardInterrupt:
        print(f"\n{soak.summary()}\nstopped: not judged")
        shutil.rmtree(directory)
        sys.exit(130)
    verdict.conclude(soak.summary(), wrong, directory)


if __name__ == "__main__":
    main()
