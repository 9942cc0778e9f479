"""H5, H6: flows on devices that have one model at a time, in virtual time."""

import msgspec
import pytest

from experiments.kv_tiers import KvTiers
from experiments.model_devices import HostMemory, HostOptions, simulate_host
from kairos import flow
from kairos.capacity.hardware import Link
from kairos.core import PLACEMENTS, POLICIES
from kairos.engines import load_profile
from kairos.simulate import World
from kairos.workflows import FlowLimits, Functions
from kairos.workflows.compile.device_work import LoadTime
from kairos.workflows.compile.flow_work import work_of_flow
from kairos.workflows.compile.placement import place_operators
from kairos.workflows.compile.placement_baselines import round_robin
from kairos.workflows.compile.prediction import predict_flow
from kairos.workflows.execute.facts import OperatorsOpened
from kairos.workflows.execute.model_turns import DeviceTurn
from tests.support.simulate.model import (
    FlowClient,
    HostTier,
    PoolOptions,
    functions_runner,
    simulate_flow,
)

LLAMA = msgspec.structs.replace(load_profile("a40-llama3-8b"), max_num_seqs=16)
PROFILES = {"small": LLAMA, "large": msgspec.structs.replace(LLAMA, name="large")}
POLICY, PLACEMENT = POLICIES["kairos"], PLACEMENTS["kairos"]
SECONDS = 1e6


def rows(count):
    return [{"text": f"{'word ' * 40}{n}"} for n in range(count)]


def chain(models):
    """Each operator needs the one before it."""
    f = flow.Flow("chain", max_tokens=40)
    doc = f.input("doc")
    text = doc["text"]
    for n, model in enumerate(models):
        text = f.llm(f"o{n}", "{{ t }} " + str(n), t=text, model=model)
    f.output("out", text)
    return f.compile()


def voting(models):
    """Three that judge, and one that needs them."""
    f = flow.Flow("voting", max_tokens=40)
    doc = f.input("doc")
    said = [
        f.llm(f"o{n}", "{{ d.text }} " + str(n), d=doc, model=model)
        for n, model in enumerate(models[:-1])
    ]
    f.output("out", f.llm("decide", "{{ s | join }}", s=said, model=models[-1]))
    return f.compile()


def planned(plan, count, devices, load_s):
    loads = dict.fromkeys(PROFILES, LoadTime(load_us=load_s * SECONDS))
    works = work_of_flow(plan, predict_flow(plan, rows(count)), PROFILES, devices)
    return works, loads, place_operators(works, loads, devices)


def host(works, loads, placed, **more):
    return HostOptions(
        turns=[
            [DeviceTurn(*turn) for turn in placed.models(device)]
            for device in range(placed.devices)
        ],
        works=works,
        loads=loads,
        profiles=PROFILES,
        policy=POLICY,
        placement=PLACEMENT,
        **more,
    )


def run(plan, count, devices, load_s, **more):
    works, loads, placed = planned(plan, count, devices, load_s)
    ran = simulate_host(plan, iter(rows(count)), Functions(), host(works, loads, placed, **more))
    return placed, ran


def uncached(ran):
    """All figures but what caches had."""
    return msgspec.structs.replace(ran.figures, cached_tokens=0)


FLOWS = {
    "chain": chain(("small", "large", "small")),
    "voting": voting(("small", "large", "small", "large")),
    "one": chain(("small", "small")),
}


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_h5_loads_are_at_most_one_more_than_the_plans(name, devices):
    placed, ran = run(FLOWS[name], 60, devices, load_s=20)
    assert ran.figures.written == 60
    assert ran.loads <= placed.loads + 1


def test_h5_a_load_that_takes_longer_moves_operators():
    _, _, cheap = planned(FLOWS["chain"], 400, 2, load_s=0.1)
    _, _, dear = planned(FLOWS["chain"], 400, 2, load_s=500)
    where = [{(each.operator, each.device) for each in placed.phases} for placed in (cheap, dear)]
    assert where[0] != where[1]
    assert dear.loads == 2  # a model each
    assert cheap.loads > 2


def test_a_flow_on_devices_that_switch_gives_as_many_rows_as_where_all_models_are():
    plan = FLOWS["voting"]
    _, ran = run(plan, 50, 1, load_s=5)
    pool = PoolOptions(instances=1, profile=LLAMA, policy=POLICY, placement=PLACEMENT)
    fixed = simulate_flow(plan, iter(rows(50)), Functions(), pool)
    assert uncached(ran) == uncached(fixed)
    assert ran.simulated_s > fixed.simulated_s + 2 * 5


def test_rows_pass_all_phases_a_batch_after_the_other():
    _, whole = run(FLOWS["chain"], 64, 1, load_s=5)
    _, batches = run(FLOWS["chain"], 64, 1, load_s=5, max_open_rows=16)
    assert whole.loads == 3
    assert 3 + 2 * 3 <= batches.loads <= 3 + 3 * 3  # four batches, of which two may share a model
    assert batches.figures.written == 64


def test_single_operators_are_bound_to_devices_for_comparison():
    works, loads, _ = planned(FLOWS["voting"], 60, 2, 20)
    bound = round_robin(works, loads, 2)
    names = {each.name: each.model for each in works}
    turns = [
        [DeviceTurn(each.operator, (each.operator,)) for each in bound.phases if each.device == n]
        for n in range(2)
    ]
    options = HostOptions(
        turns=turns,
        works=[msgspec.structs.replace(each, model=each.name) for each in works],
        loads=loads | {name: loads[model] for name, model in names.items()},
        profiles=PROFILES,
        weights=names,
        policy=POLICY,
        placement=PLACEMENT,
    )
    ran = simulate_host(FLOWS["voting"], iter(rows(60)), Functions(), options)
    assert ran.figures.written == 60
    # small, large | small, large: the first device has o0 and o2, which are of one model.
    assert ran.loads == bound.loads == 2


def test_rows_that_arrive_later_are_read_later():
    _, ran = run(FLOWS["one"], 20, 1, load_s=1, arrives_at=lambda row: row * 10_000_000)
    assert ran.simulated_s > 190
    ended_after = [at - n * 10_000_000 for n, at in enumerate(ran.ended_at_us)]
    assert all(0 < each < 15_000_000 for each in ended_after)


def test_h6_no_instance_idles_beside_a_call_that_is_ready_and_fits():
    plan, table = FLOWS["one"], rows(200)
    limits = FlowLimits(capacity=2 * LLAMA.max_num_seqs)
    clients = []

    def client(clock, feed):
        made = FlowClient(plan, limits, iter(table), functions_runner(Functions()), clock, feed)
        clients.append(made)
        return made

    idle_at = []

    def look(world):
        gate = clients[0].executor.gate
        waiting = sum(gate.wanted.values()) - sum(gate.in_flight.values())
        idle = [each for each in instances if not world.balancer.ledger.running(each)]
        if idle and waiting:
            idle_at.append((world.clock.now(), idle, waiting))

    instances = {"a": LLAMA, "b": LLAMA}
    world = World((), instances, POLICY, PLACEMENT, clients=client, on_second=look)
    world.run()
    assert clients[0].executor.figures.written == 200
    assert idle_at == []
    # The same look finds it where calls are held though an engine could take them.
    clients.clear()
    world = World((), instances, POLICY, PLACEMENT, clients=client, on_second=look)
    clients[0].handle_fact(OperatorsOpened(frozenset()))
    world.clock.call_at(3_500_000, lambda: clients[0].handle_fact(OperatorsOpened(None)))
    world.run()
    assert [at for at, _, _ in idle_at] == [1_000_000, 2_000_000, 3_000_000]


def reviewed(words):
    """The first and the last of three operators ask the same model about a document, and another
    model has the device in between."""
    f = flow.Flow("review", max_tokens=20)
    doc = f.input("doc")
    draft = f.llm("draft", "{{ d }} draft", d=doc["text"], model="small")
    check = f.llm("check", "{{ a }} check", a=draft, model="large")
    f.output("last", f.llm("last", "{{ d }} {{ b }}", d=doc["text"], b=check, model="small"))
    plan, table = f.compile(), [{"text": f"{n} {'word ' * words}"} for n in range(100)]
    works = work_of_flow(plan, predict_flow(plan, table), PROFILES, 1)
    loads = {name: LoadTime(load_us=SECONDS) for name in PROFILES}
    options = host(works, loads, place_operators(works, loads, 1))

    def run_with(gbit_s):
        memory = gbit_s and HostMemory(
            tiers=KvTiers(bytes_per_token=131_072, host=Link(gbit_s=gbit_s)), tokens=200_000
        )
        with_memory = msgspec.structs.replace(options, memory=memory)
        return simulate_host(plan, iter(table), Functions(), with_memory)

    return run_with


def test_h10_contexts_that_a_switch_lost_come_from_the_hosts_memory_where_that_is_quicker():
    run_with = reviewed(words=400)
    computed, loaded, slow = run_with(None), run_with(200), run_with(0.4)
    assert computed.loads == loaded.loads == 3
    assert uncached(computed) == uncached(loaded)
    # A token of this engine takes 0.3 ms of arithmetic, and 5 us of a link of 25 GB/s.
    assert loaded.simulated_s < 0.85 * computed.simulated_s
    # Over one of 50 MB/s it takes 2.6 ms: all is computed, as if there were no such memory.
    assert slow == computed


def test_h10_what_the_hosts_memory_has_no_room_for_is_computed():
    tier = HostTier(4)
    tier.keep_blocks([range(3), range(3, 6)])
    assert tier.count_found([range(2, 6)]) == 4
    assert tier.count_found([range(6)]) == 0
    few = HostTier(4, loads=lambda blocks: blocks > 2)
    few.keep_blocks([range(4)])
    assert few.count_found([range(2)]) == 0
    assert few.count_found([range(3)]) == 3
