"""A declared workflow from a file: YAML, or a Python module that declares one."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import msgspec

from kairos.errors import SetupError
from kairos.flow import Flow, Functions
from kairos.flow.yaml_file import read_yaml
from kairos.live.runs.rows import InputTable
from kairos.plan.operators import Declaration
from kairos.plan.pipeline import Plan

_BYTES = 4 << 20
_T = TypeVar("_T")


class LoadedFlow(msgspec.Struct, frozen=True):
    """What it declares, and the functions that it may call."""

    declaration: Declaration
    functions: Functions


def load_flow(path: Path, functions_path: Path | None = None) -> LoadedFlow:
    """Read a flow. A Python file is run; a YAML file carries no code, so the functions that it
    names are those of a Python file beside it.

    Raises:
        SetupError: the file is missing, or wrong: it says where, and what would be right.
    """
    suffix = path.suffix.lower()
    if suffix == ".py":
        if functions_path is not None:
            raise SetupError(f"{path} brings its own functions: leave out --functions")
        flow = _only(_import(path), Flow, path, "a kairos.flow.Flow")
        return LoadedFlow(flow.declaration, flow.functions)
    if suffix not in (".yaml", ".yml"):
        raise SetupError(f"{path}: a flow is a .yaml file, or a .py file that declares one")
    functions = Functions()
    if functions_path is not None:
        functions = _only(
            _import(functions_path), Functions, functions_path, "a kairos.flow.Functions"
        )
    return LoadedFlow(read_yaml(_text(path), str(path)), functions)


def check_columns(plan: Plan, table: InputTable) -> None:
    """Raises SetupError: the table lacks one that the flow needs."""
    needed = [column for column in plan.columns if column is not None]
    if missing := [column for column in needed if column not in table.columns]:
        known = ", ".join(f"'{name}'" for name in table.columns[:20])
        raise SetupError(
            f"the table has no column '{missing[0]}', which the flow needs; it has {known}"
        )


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_BYTES + 1)
        if len(raw) > _BYTES:
            raise SetupError(f"{path} is larger than {_BYTES >> 20} MiB, which no flow is")
        return raw.decode()
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SetupError(f"{path} is no UTF-8: {error}") from None


def _import(path: Path) -> ModuleType:
    """Run a Python file as a module, whose neighbours it may import."""
    if not path.is_file():
        raise SetupError(f"{path} cannot be read: there is no such file")
    name = f"kairos_flow_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SetupError(f"{path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # data classes look for their module there
    beside = str(path.resolve().parent)
    if beside not in sys.path:
        sys.path.insert(0, beside)
    try:
        spec.loader.exec_module(module)
    except SetupError:
        raise
    except Exception as error:  # whatever the module does
        raise SetupError(
            f"{path} cannot be run: {type(error).__name__}: {str(error)[:1000]}"
        ) from error
    return module


def _only(module: ModuleType, kind: type[_T], path: Path, what: str) -> _T:
    """The module's one object of a kind."""
    found = {id(each): each for each in vars(module).values() if isinstance(each, kind)}
    if len(found) != 1:
        how_many = f"{len(found)} of them" if found else "none"
        raise SetupError(f"{path} should hold {what} and holds {how_many}")
    return next(iter(found.values()))
