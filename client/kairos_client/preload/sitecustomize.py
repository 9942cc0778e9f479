"""Hook that Python imports at startup, where `kairos-run` put it on the path.

It then imports the `sitecustomize` that Python would have imported instead.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)

try:
    import kairos_client.auto  # noqa: F401
except Exception as error:  # noqa: BLE001 - the program runs anyway, without identities
    print(f"kairos_client: {error!r}", file=sys.stderr)

found = PathFinder.find_spec("sitecustomize", [each for each in sys.path if each != HERE])
if found is not None and found.loader is not None:
    found.loader.exec_module(module_from_spec(found))
