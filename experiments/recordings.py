"""Recorded workflows, by application: real agents' calls, in numbers only."""

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec

from kairos.core import InvalidFile, SetupError
from kairos.host import read_lines
from kairos.simulate import FileCall

ROOT = Path(__file__).parents[1]
# The demo's applications on a real model: `kairos demo --record`.
DEMO = ROOT / "traces" / "demo-smollm2.jsonl.gz"


class RecordedCall(FileCall, frozen=True, kw_only=True):
    """A call with what some recordings say beside the workflow file's own fields."""

    gap_kind: str | None = None  # what the gap before it was: `tool` or `user`
    turn: int | None = None  # which of the user's messages the call serves
    model: str | None = None


Workflow = tuple[RecordedCall, ...]  # in the order of the file, at least one call
Apps = dict[str, list[Workflow]]


def data_directory() -> Path:
    """Where the recorded data sets are: KAIROS_DATA, or shared/data beside the checkout."""
    return Path(os.environ.get("KAIROS_DATA", ROOT.parent / "shared" / "data"))


def recordings() -> tuple[Path, Path]:
    """The files of real agents, and of the demo's applications.

    Raises:
        SetupError: one of them is not there.
    """
    agentic = data_directory() / "agentic_workflows.jsonl.gz"
    if not agentic.is_file():
        raise SetupError(f"no recorded workflows at {agentic}; set KAIROS_DATA to their directory")
    if not DEMO.is_file():
        raise SetupError(f"no {DEMO}; make it with: kairos demo --record {DEMO}")
    return agentic, DEMO


def read_apps(*paths: Path) -> Apps:
    """The workflows of these files, by application.

    Raises:
        InvalidFile: at the first line that is not a call.
    """
    decoder = msgspec.json.Decoder(RecordedCall)
    workflows: dict[tuple[str, str], list[RecordedCall]] = {}
    for path in paths:
        for number, line in read_lines(path):
            try:
                call = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise InvalidFile(path, f"not a call: {error}", line=number) from error
            workflows.setdefault((call.app, call.workflow_id), []).append(call)
    apps: Apps = {}
    for (app, _), calls in workflows.items():
        apps.setdefault(app, []).append(tuple(calls))
    return apps


def halves(workflows: Sequence[Workflow], seed: int) -> tuple[list[Workflow], list[Workflow]]:
    """Workflows to learn and workflows to test, chosen by the seed."""
    mixed = Random(seed).sample(workflows, len(workflows))  # noqa: S311  (no secret)
    middle = len(mixed) // 2
    return mixed[:middle], mixed[middle:]
