"""The decision code compiled to C: the same source, by mypyc, where `make compile` was run.

`scripts/compile_brain.py` writes the extension modules into `compiled/`, with a manifest that lists
their sources and has a hash of them. The compiled modules are used only while the sources have that
hash, so edits take effect. Without them, or with `KAIROS_INTERPRETED=1`, Python runs the source.
Not in the paper.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[1] / "compiled"
MANIFEST = "manifest.json"
INTERPRETED = "KAIROS_INTERPRETED"  # set, and not empty: the source is run
SUFFIX = EXTENSION_SUFFIXES[0]  # of this Python on this platform


class CompiledModules:
    """Import finder that returns compiled modules before their sources are searched."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        file = self._files.get(name)
        if file is None:
            return None
        return spec_from_file_location(name, file, loader=ExtensionFileLoader(name, str(file)))


def digest(package: Path, sources: Iterable[str]) -> str:
    """Return the hash of sources, whose paths are relative to the package."""
    found = hashlib.sha256()
    for each in sources:
        found.update(each.encode() + b"\0" + (package / each).read_bytes() + b"\0")
    return found.hexdigest()


def install_compiled_brain() -> bool:
    """Use compiled modules from now on. Return whether there are current ones."""
    if os.environ.get(INTERPRETED) or not (found := files(FOLDER)):
        return False
    sys.meta_path.insert(0, CompiledModules(found))
    return True


def files(folder: Path) -> dict[str, Path]:
    """Return the compiled files by module; empty if the sources or the Python have changed."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        if digest(folder.parent, manifest["sources"]) != manifest["digest"]:
            return {}
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    found = {}
    for file in folder.rglob(f"*{SUFFIX}"):
        path = str(file.relative_to(folder)).removesuffix(SUFFIX)
        found[path.replace(os.sep, ".")] = file
    return found
