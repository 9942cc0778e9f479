"""The command `kairos` in the test's own process, whole and in parts."""

from typer.testing import CliRunner

from kairos.cli.bus_check import CHECKED, check_bus, skip_record
from kairos.cli.demo import Demo
from kairos.cli.demos.engines import SCRIPT, start_engines
from kairos.cli.demos.plan import plan_submissions
from kairos.cli.main import app, main

__all__ = [
    "CHECKED",
    "SCRIPT",
    "Demo",
    "app",
    "check_bus",
    "invoke",
    "main",
    "plan_submissions",
    "skip_record",
    "start_engines",
]


def invoke(*words, **options):
    """Return the result of `kairos WORDS`: its exit code and output."""
    return CliRunner().invoke(app, [str(word) for word in words], **options)
