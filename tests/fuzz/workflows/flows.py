"""Declared workflows, fuzzed."""

from collections.abc import Callable
from contextlib import suppress

from kairos.core import InvalidFile
from kairos.workflows.compile.operators import Declaration
from kairos.workflows.compile.pipeline import compile_plan
from kairos.workflows.compile.prediction import predict_flow
from kairos.workflows.declare.yaml_file import read_json, read_yaml


def flow(data: bytes) -> None:
    """A declared workflow, as YAML and as JSON: its plan can be made, and its cost predicted."""
    text = data.decode("utf-8", "replace")
    for read in (read_yaml, read_json):
        _plan_of(read, text)


def _plan_of(read: Callable[[str, str], Declaration], text: str) -> None:
    with suppress(InvalidFile):
        plan = compile_plan(read(text, "flow"))
        assert compile_plan(plan.declaration).declaration == plan.declaration
        row = {name: ["x", {"text": "y"}] for name in plan.columns}
        assert predict_flow(plan, [row, row]).rows == 2
