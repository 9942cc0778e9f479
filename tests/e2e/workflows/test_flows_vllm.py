"""How systems carry out a flow before real engines, and the command that compares them."""

import subprocess
import sys
from functools import partial

import pytest

from experiments import flows_vllm_run
from experiments.e47_flows_real import (
    DECLARED,
    DEVICE_SYSTEMS,
    ONE,
    POOL_SYSTEMS,
    TOPOLOGICAL,
)
from experiments.fidelity_engines import Limits
from experiments.flow_systems import AS_DECLARED, KAIROS, OPWISE
from experiments.flow_workloads import map_reduce
from experiments.flows_vllm_run import on_devices, on_engines
from experiments.switching import rows as documents
from experiments.switching import workflow
from kairos.core import SetupError
from kairos.workflows import Passes
from kairos.workflows.run.engine_host import HostedEngine, HostedModel, HostFile
from kairos.workflows.start.hosted_pool import hosted_pool
from tests.e2e.cli.flow_runs import answering
from tests.support.vllm import needs_vllm

pytestmark = pytest.mark.usefixtures("forks")

STANDIN = HostedEngine("kairos.simulate.standin.server", "--model")
LIMITS = Limits(kv_blocks=1024, max_num_seqs=4)
LIMIT_S = 600  # a machine that has other work, too


def planned(workload, system):
    return workload.flow.compile(Passes() if system in DECLARED else AS_DECLARED)


@pytest.mark.parametrize("system", POOL_SYSTEMS)
async def test_every_system_ends_all_rows_before_two_engines(engines, system):
    # Answers take a while: one engine that answers at once could have all calls.
    pool = [answering(await engines(), delay_s=0.1), answering(await engines(), delay_s=0.1)]
    workload = map_reduce(2)
    plan, rows = planned(workload, system), workload.rows(3, 1)

    ran = await on_engines(plan, rows, system, [each.url for each in pool], LIMITS)

    assert ran.calls == 9
    assert ran.s > 0
    used = [each for each in pool if each.calls]
    assert len(used) == (1 if system == ONE else 2)


async def test_rows_that_fail_are_told(engines):
    engine, workload = await engines(), map_reduce(1)  # which answers no chat
    with pytest.raises(SetupError, match="0 of 1 rows came to their end"):
        await on_engines(
            planned(workload, KAIROS), workload.rows(1, 1), KAIROS, [engine.url], LIMITS
        )


async def test_kairos_loads_each_model_once_where_topological_order_loads_for_each_step(
    monkeypatch,
):
    pool = partial(hosted_pool, engines={"llama": STANDIN})
    monkeypatch.setattr(flows_vllm_run, "hosted_pool", pool)
    host = HostFile(
        devices=2,
        models={
            name: HostedModel(
                engine="llama", options=("--instant",), profile="cpu-tiny", load_s=20.0
            )
            for name in ("small", "large")
        },
    )
    plan, rows = workflow("W3").compile(Passes(cached=False)), documents(6, 1)
    loads = {}
    for system in DEVICE_SYSTEMS:
        ran = await on_devices(plan, rows, system, host)
        assert ran.calls == 18
        loads[system] = ran.loads
    assert loads[KAIROS] == 2
    assert loads[TOPOLOGICAL] > 2


@pytest.mark.acceptance
@pytest.mark.timeout(LIMIT_S + 60)
def test_the_quick_form_compares_systems_on_two_real_vllm():
    needs_vllm()
    command = (sys.executable, "-m", "experiments.flows_vllm", "--quick")
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    for system in (KAIROS, OPWISE, ONE):
        assert f"| map-reduce, {system} | 1 x" in done.stdout
    assert "100 %" in done.stdout, "of one call at a time, one engine has all"
