"""Load flows, and functions that flows may call, from a Python file. The file is executed."""

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TypeVar

from kairos.core import SetupError
from kairos.workflows.declare.functions import Functions

_T = TypeVar("_T")


def load_functions(path: Path) -> Functions:
    """Return the functions of a file.

    Raises:
        SetupError: the file is missing, cannot be run, or does not have exactly one `Functions`.
    """
    return only_one(load_module(path), Functions, path)


def load_module(path: Path) -> ModuleType:
    """Execute a Python file as a module; it may import modules next to it.

    Raises:
        SetupError: it is missing, or cannot be run.
    """
    if not path.is_file():
        raise SetupError(f"{path} cannot be read: there is no such file")
    name = f"kairos_flow_{path.stem}"
    loader = _AsWritten(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None or spec.loader is None:
        raise SetupError(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # data classes look for their module there
    beside = str(path.resolve().parent)
    if beside not in sys.path:
        sys.path.insert(0, beside)
    try:
        spec.loader.exec_module(module)
    except (SetupError, KeyboardInterrupt):
        raise
    except BaseException as error:  # whatever the module does, SystemExit included
        raise SetupError(
            f"{path} cannot be run: {type(error).__name__}: {str(error)[:1000]}"
        ) from error
    return module


class _AsWritten(SourceFileLoader):
    """Compiles a file each time: by time and size alone an edit could be missed."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def only_one(module: ModuleType, kind: type[_T], path: Path) -> _T:
    """Return the module's only object of a kind, Flow or Functions.

    Raises:
        SetupError: it has none, or several.
    """
    found = {id(each): each for each in vars(module).values() if isinstance(each, kind)}
    if len(found) != 1:
        how_many = f"{len(found)} of them" if found else "none"
        raise SetupError(f"{path} should hold a kairos.flow.{kind.__name__} and holds {how_many}")
    return next(iter(found.values()))
