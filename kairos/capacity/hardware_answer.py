"""Answer to a question about hardware: plan, plans of changed questions, reasons, simulation."""

from collections.abc import Mapping

import msgspec

from kairos.capacity.hardware_options import (
    HardwareOptions,
    change_question,
    planned_workflows,
    read_question,
    todays_pool,
)
from kairos.capacity.hardware_plan import HardwarePlan, HardwareQuestion, plan_hardware
from kairos.capacity.migration import Migration, plan_migration
from kairos.capacity.pool_simulation import SimulatedTimes, simulate_plan
from kairos.capacity.reasons import Reasons, give_reasons


class HardwareAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Question with its plan, and what was asked for in addition."""

    asked: HardwareQuestion
    plan: HardwarePlan
    others: Mapping[str, HardwarePlan] = {}  # plans of changed questions, by what was changed
    why: Reasons | None = None
    steps: Migration | None = None  # from today's pool
    times: SimulatedTimes | None = None  # of a simulation of the chosen pool


def plan_options(options: HardwareOptions) -> HardwareAnswer:
    """Plan hardware as the options ask for it.

    Raises:
        SetupError, InvalidFile: an option or a file is wrong; the message says what to do.
    """
    workflows = planned_workflows(options)
    asked = read_question(options, workflows)
    changes = {text: change_question(asked, text) for text in options.what_if}
    found = plan_hardware(asked)
    others = {text: plan_hardware(changed) for text, changed in changes.items()}
    why = give_reasons(asked, found) if found.met and asked.objective == "cost" else None
    steps = None
    if options.today is not None:
        from_today, pool = todays_pool(options, asked)
        steps = plan_migration(from_today, found, pool)
    times = simulate_plan(asked, found, workflows) if options.simulate else None
    return HardwareAnswer(asked=asked, plan=found, others=others, why=why, steps=steps, times=times)
