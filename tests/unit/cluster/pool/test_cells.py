"""Several pools before one gateway: the choice between them, by workflow."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.cluster import Cells
from kairos.cluster.pool.cells import AWAY_US
from kairos.core import InstanceJoined, InstanceLeft
from kairos.settings import EngineSettings
from tests.support.simulate import build


class Gateway:
    """A gateway sees engines by pool, and a clock."""

    def __init__(self, engines, models=None):
        """Take the number of engines in each pool; `models` by pool, all serve `m` without."""
        self.at = 0
        self.cells = Cells(tuple(engines), lambda: self.at)
        settings, self.joined = [], []
        for pool, count in engines.items():
            for n in range(count):
                each = EngineSettings(url=f"http://{pool}-{n}:80", pool=pool)
                settings.append(each)
                served = (models or {}).get(pool, ("m",))
                self.joined.append(InstanceJoined(build.instance(each.id, models=served)))
        self.cells.follow(settings, ())
        for joined in self.joined:
            self.cells.hear(joined)

    def choose(self, number, model="m"):
        return self.cells.choose(build.request(f"{number}", model=model))

    def silent(self, *pools):
        """Let the balancers of these pools be silent for long enough to be away."""
        self.at += AWAY_US
        for pool in self.cells.pools:
            if pool not in pools:
                self.cells.hear_balancer(pool)

    def leave(self, pool):
        for joined in self.joined:
            if joined.instance.id.startswith(f"{pool}-"):
                self.cells.hear(InstanceLeft(joined.instance.id))


POOLS = {"a": 2, "b": 2, "c": 2}


def test_all_calls_of_a_workflow_go_to_one_pool_from_every_gateway():
    one, other = Gateway(POOLS), Gateway(dict(reversed(POOLS.items())))
    for number in range(200):
        assert one.choose(number) == one.choose(number) == other.choose(number)


def test_pools_get_workflows_by_their_numbers_of_engines():
    gateway = Gateway({"a": 1, "b": 2, "c": 5})
    got = Counter(gateway.choose(number) for number in range(8_000))
    for pool, engines in {"a": 1, "b": 2, "c": 5}.items():
        assert abs(got[pool] - 1_000 * engines) < 4 * (1_000 * engines) ** 0.5


@pytest.mark.parametrize("go", ["silent", "leave"])
def test_a_pool_that_is_away_gets_no_workflows_and_no_others_move(go):
    gateway = Gateway(POOLS)
    before = {number: gateway.choose(number) for number in range(300)}
    getattr(gateway, go)("b")
    now = {number: gateway.choose(number) for number in range(300)}
    assert "b" not in now.values()
    assert all(now[each] == pool for each, pool in before.items() if pool != "b")
    assert {now[each] for each, pool in before.items() if pool == "b"} == {"a", "c"}


def test_workflows_come_back_with_their_pool():
    gateway = Gateway(POOLS)
    before = [gateway.choose(number) for number in range(100)]
    gateway.silent("b")
    gateway.cells.hear_balancer("b")
    assert [gateway.choose(number) for number in range(100)] == before


def test_a_takeover_moves_nothing():
    gateway = Gateway(POOLS)
    gateway.at += AWAY_US - 1
    assert not any(gateway.cells.is_away(pool) for pool in POOLS)


def test_a_bus_that_is_away_moves_nothing():
    gateway = Gateway(POOLS)
    before = [gateway.choose(number) for number in range(100)]
    gateway.silent("a", "b", "c")
    assert [gateway.choose(number) for number in range(100)] == before


def test_calls_go_to_pools_that_serve_their_model():
    gateway = Gateway(POOLS, {"a": ("m", "x"), "b": ("x",), "c": ("m",)})
    for number in range(100):
        assert gateway.choose(number) in ("a", "c")
        assert gateway.choose(number, "x") in ("a", "b")


def test_a_model_that_no_pool_serves_is_refused_by_a_balancer_that_is_there():
    gateway = Gateway(POOLS)
    gateway.silent("b")
    assert {gateway.choose(number, "unknown") for number in range(100)} == {"a", "c"}


def test_an_engine_that_only_computes_prompts_serves_no_model():
    gateway = Gateway({"a": 1, "b": 1})
    gateway.leave("a")
    gateway.cells.hear(InstanceJoined(build.instance("a-0:80", phase="prefill")))
    assert {gateway.choose(number) for number in range(50)} == {"b"}


def test_engines_that_drain_weigh_nothing():
    gateway = Gateway({"a": 1, "b": 1})
    engines = [EngineSettings(url=f"http://{each}-0:80", pool=each) for each in "ab"]
    gateway.cells.follow(engines, ["b-0:80"])
    assert {gateway.choose(number) for number in range(50)} == {"a"}


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1),
    st.sets(st.sampled_from("abcdef")),
    st.text(max_size=30),
    st.text(max_size=30),
)
def test_ends_reach_each_pool_that_has_calls_of_the_workflow_now(engines, away, tenant, name):
    gateway = Gateway(engines, {"a": ("m", "x"), "b": ("x",)})
    request = build.request("r", workflow_id=name, tenant=tenant)
    at_first = gateway.cells.choose(request)
    gateway.silent(*away)
    now = gateway.cells.choose(request)
    told = gateway.cells.pools_of(tenant, name)
    assert {at_first, now} <= set(told)
    assert len(told) <= 6
    serving = set(engines) - {"b"} or set(engines)
    assert now not in away or serving <= away


def test_metrics_name_each_pool():
    gateway = Gateway(POOLS)
    gateway.silent("b")
    gateway.choose(1)
    shown = {
        (sample.name, sample.labels["pool"]): sample.value
        for family in gateway.cells.collect()
        for sample in family.samples
    }
    assert [shown["kairos_cell_up", pool] for pool in "abc"] == [1, 0, 1]
    assert [shown["kairos_cell_instances", pool] for pool in "abc"] == [2, 2, 2]
    assert sum(shown["kairos_cell_calls_total", pool] for pool in "abc") == 1
