"""Workloads without users: workflow files, and arrival times."""

from kairos.simulate.workload.arrival_process import (
    MODELS,
    Burstiness,
    arrival_model,
    arrivals_within,
    draw_arrivals,
    measure_burstiness,
    time_scale,
)
from kairos.simulate.workload.azure_trace import from_trace, read_trace
from kairos.simulate.workload.workflow_file import FileCall, read_workflows, write_workflows

__all__ = [
    "MODELS",
    "Burstiness",
    "FileCall",
    "arrival_model",
    "arrivals_within",
    "draw_arrivals",
    "from_trace",
    "measure_burstiness",
    "read_trace",
    "read_workflows",
    "time_scale",
    "write_workflows",
]
