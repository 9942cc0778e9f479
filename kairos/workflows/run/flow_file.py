"""Declared workflow from a file: YAML, a Python module that declares one, or an OpenAI batch."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from kairos.core import SetupError
from kairos.workflows.compile.operators import Declaration
from kairos.workflows.compile.pipeline import Passes, Plan, compile_plan
from kairos.workflows.declare.declaring import Flow
from kairos.workflows.declare.functions import Functions
from kairos.workflows.declare.openai_batch import from_openai_batch
from kairos.workflows.declare.python_file import load_functions, load_module, only_one
from kairos.workflows.declare.yaml_file import read_yaml
from kairos.workflows.run.rows import InputTable
from kairos.workflows.run.tables import open_table

_BYTES = 4 << 20
_BATCH = ".jsonl"


class LoadedFlow(msgspec.Struct, frozen=True):
    """Flow read from a file, with the functions that it may call."""

    declaration: Declaration
    functions: Functions


def load_flow(path: Path, functions_path: Path | None = None) -> LoadedFlow:
    """Read a flow: YAML (.yaml), Python (.py), or an OpenAI batch (.jsonl).

    A Python file is executed; a YAML file has no code, so its functions come from a separate Python
    file.

    Raises:
        SetupError: the file is missing, or wrong; the message says where, and what would be right.
    """
    suffix = path.suffix.lower()
    if suffix in (".py", _BATCH):
        if functions_path is not None:
            raise SetupError(f"{path} brings its own functions: leave out --functions")
        is_batch = suffix == _BATCH
        flow = from_openai_batch(path) if is_batch else only_one(load_module(path), Flow, path)
        return LoadedFlow(flow.declaration, flow.functions)
    if suffix not in (".yaml", ".yml"):
        raise SetupError(
            f"{path}: a flow is a .yaml file, a .py file that declares one, or an OpenAI batch "
            "(.jsonl)"
        )
    functions = Functions()
    if functions_path is not None:
        functions = load_functions(functions_path)
    return LoadedFlow(read_yaml(_text(path), str(path)), functions)


class TableFlow(msgspec.Struct, frozen=True):
    """Flow read from a file, with the table that it is to go over; the two fit together."""

    declaration: Declaration
    functions: Functions
    plan: Plan
    table: InputTable

    def rows(self) -> Iterator[Mapping[str, object]]:
        """Yield the rows that can be read, by their columns."""
        return (row.values for row in self.table.rows() if row.values is not None)


def load_table_flow(
    flow: Path, functions_path: Path | None, inputs: object, passes: Passes
) -> TableFlow:
    """Read a flow and open its table.

    `inputs`: the table, as `open_table` takes it. `passes`: of the plan.

    Raises:
        SetupError: the flow, its functions and the table do not fit together.
    """
    loaded = load_flow(flow, functions_path)
    plan = compile_plan(loaded.declaration, passes)
    loaded.functions.check(plan)
    table = open_table(inputs)
    check_columns(plan, table)
    return TableFlow(loaded.declaration, loaded.functions, plan, table)


def table_path(flow: Path, inputs: Path | None) -> Path:
    """Return the table that a flow runs over; for a batch its own file.

    Raises:
        SetupError: none is named, or one for a batch.
    """
    if flow.suffix.lower() != _BATCH:
        if inputs is None:
            raise SetupError("name the table to run over: --inputs FILE")
        return inputs
    if inputs is not None and inputs.absolute() != flow.absolute():
        raise SetupError(f"{flow} is a batch, whose lines are the rows: leave out --inputs")
    return flow


def check_columns(plan: Plan, table: InputTable) -> None:
    """Check that a table has the columns that a flow needs; other columns may lack a name.

    Raises:
        SetupError: no row has a column that the flow needs, or several columns have its name.
    """
    repeated = [name for name in table.repeated if plan.table.whole or name in plan.columns]
    if repeated:
        raise SetupError(
            f"two columns of the table are called '{repeated[0]}', which the flow needs: give each "
            "a name of its own"
        )
    for column in plan.columns:
        if not table.may_have(column):
            known = ", ".join(f"'{name}'" for name in table.columns[:20])
            raise SetupError(
                f"the table has no column '{column}', which the flow needs; it has {known}"
            )


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_BYTES + 1)
        if len(raw) > _BYTES:
            raise SetupError(f"{path} is larger than {_BYTES >> 20} MiB, the limit for a flow")
        return raw.decode()
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SetupError(f"{path} is not UTF-8: {error}") from None
