"""The report's sections, by the names of their modules, in its order."""

from collections.abc import Sequence
from importlib import import_module
from inspect import getdoc
from pathlib import Path
from typing import Any

import msgspec

from experiments.claim import Claim, Study
from experiments.report import QUICK, RESULTS

_MODULES = (
    "e03_lengths",
    "e08_queue_ranks",
    "e09_preemption",
    "e14_single_applications",
    "e15_colocated",
    "e16_ordering",
    "e17_larger_model",
    "e18_ablation",
    "e19_slot_length",
    "e20_overhead",
    "e07_placements",
    "e21_recorded_agents",
    "e22_anywhere",
    "e23_inputs",
    "e24_misjudged",
    "e25_unequal_instances",
    "e26_bursts",
    "e28_scale",
    "e29_live",
    "e30_yesterday",
    "e31_gpu",
    "e32_constants",
    "e34_hardware_pairs",
    "e35_hardware_prediction",
    "e36_hardware_choice",
    "e37_autoscaling",
    "e40_modules",
    "e40_modules_real",
    "e41_halo_offline",
    "e42_switching",
    "e43_online",
    "e44_helium",
    "e45_order_gap",
    "e46_batch",
    "e46_batch_real",
    "e47_flows_real",
    "e48_declared_order",
    "e51_untuned",
    "e52_guard_constants",
    "e53_drawn_orders",
    "e54_drawn_placements",
    "e56_kept_order",
    "e57_planned_rows",
    "e58_kept_prefixes",
    "e59_names_alone",
    "e60_convergence",
    "e61_hardware_regret",
    "e63_little_memory",
    "e64_mini_batches",
    "e65_depth_order",
    "e66_order_forecast",
    "e68_measured_batches",
    "e69_served_passes",
    "e62_hardware_loads",
    "e70_hardware_applications",
    "e71_served_prefixes",
    "e72_cells",
)
_MADE = {name: import_module(f"experiments.{name}") for name in _MODULES}
SECTIONS: dict[str, Claim | Study] = {
    name: getattr(module, "CLAIM", None) or module.STUDY for name, module in _MADE.items()
}
CLAIMS = {name: each for name, each in SECTIONS.items() if isinstance(each, Claim)}


def about(name: str) -> str:
    """What the section's module says of it."""
    return getdoc(_MADE[name]) or ""


def first_line(name: str) -> str:
    return about(name).split("\n\n")[0].replace("\n", " ")


def rows_file(name: str, quick: bool) -> Path:
    """Of a study."""
    return (QUICK if quick else RESULTS) / f"{name}.jsonl"


def read_rows(name: str, study: Study, quick: bool) -> Sequence[Any]:
    """Of a study; empty where it was not run."""
    path = rows_file(name, quick)
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=study.row) for line in lines]
