"""What it costs a flow where nobody keeps account of instances' memory and time."""

import msgspec

from kairos.core import PLACEMENTS
from kairos.simulate.flow_simulation import simulate_flow
from kairos.workflows import Passes
from tests.simulation.simulate.test_flow_forecast import POOL, SIX
from tests.support.flow_tables import rows
from tests.support.workflows.runs import compile_plan

# No ledger of what is on its way: in turn, or by the memory that engines said they use.
WITHOUT = ("round-robin", "least-kv")


def together_s(placement):
    pool = msgspec.structs.replace(POOL, placement=PLACEMENTS[placement])
    return sum(
        simulate_flow(
            compile_plan(SIX[name].declaration, Passes()), iter(rows(60)), SIX[name].functions, pool
        ).simulated_s
        for name in ("debate.py", "summarise_and_judge.yaml", "dialogue")
    )


def test_h7_without_the_ledger_flows_take_at_least_half_a_percent_longer():
    with_ledger = together_s("kairos")
    assert all(together_s(each) >= 1.005 * with_ledger for each in WITHOUT)
