"""The command `kairos` in the test's own process, whole and in parts."""

from typer.testing import CliRunner

from kairos.cli.bus_check import CHECKED, check_bus, skip_record
from kairos.cli.demos.engines import SCRIPT, start_engines
from kairos.cli.demos.options import Options
from kairos.cli.demos.plan import plan_submissions
from kairos.cli.flows.flow_profiled import sampled_rows, simulated_profile
from kairos.cli.flows.flow_run import check_task, new_record, run_flow, run_task
from kairos.cli.flows.hosted_pool import hosted_pool
from kairos.cli.flows.spread import performers
from kairos.cli.main import app, main

__all__ = [
    "CHECKED",
    "SCRIPT",
    "Options",
    "app",
    "check_bus",
    "check_task",
    "hosted_pool",
    "invoke",
    "main",
    "new_record",
    "performers",
    "plan_submissions",
    "run_flow",
    "run_task",
    "sampled_rows",
    "simulated_profile",
    "skip_record",
    "start_engines",
]


def invoke(*words, **options):
    """Return the result of `kairos WORDS`: its exit code and output."""
    return CliRunner().invoke(app, [str(word) for word in words], **options)
