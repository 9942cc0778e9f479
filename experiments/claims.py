"""All claims on simulated runs, by the names of their modules, in the order of the report."""

from importlib import import_module
from inspect import getdoc

from experiments.claim import Claim

_MODULES = (
    "e09_preemption",
    "e14_single_applications",
    "e15_colocated",
    "e17_larger_model",
    "e18_ablation",
    "e07_placements",
    "e21_recorded_agents",
    "e22_anywhere",
    "e23_inputs",
    "e24_misjudged",
    "e25_unequal_instances",
    "e26_bursts",
)
CLAIMS: dict[str, Claim] = {name: import_module(f"experiments.{name}").CLAIM for name in _MODULES}


def about(name: str) -> str:
    """What the claim's module says of it."""
    return getdoc(import_module(f"experiments.{name}")) or ""


def first_line(name: str) -> str:
    return about(name).split("\n\n")[0].replace("\n", " ")
