"""Quotas over several pools: each enforces its part."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kairos.cluster.local.local_control import entitlements_of
from kairos.settings import EngineSettings, Settings


def quotas(**limits):
    return msgspec.convert({"quota": [{"tenant": "t", **limits}]}, Settings).quota


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=6),
    st.integers(1, 10_000),
    st.integers(1, 10_000),
)
def test_pools_together_enforce_a_quota_to_less_than_one_for_each(engines, limit, calls):
    names = [f"p{n}" for n in range(len(engines))]
    settings = Settings(
        bus="kafka://k:9092",
        pools=tuple(names),
        engine=tuple(
            EngineSettings(url=f"http://{name}-{n}:80", pool=name)
            for name, count in zip(names, engines, strict=True)
            for n in range(count)
        ),
        quota=quotas(calls_at_once=limit, tokens_per_day=calls),
    )
    parts = []
    for name in names:
        own = msgspec.structs.replace(settings, pool=name)
        [quota] = entitlements_of(own).quotas
        assert quota.calls_per_minute is None
        parts.append((quota.calls_at_once, quota.tokens_per_day))
    for whole, each in zip((limit, calls), zip(*parts, strict=True), strict=True):
        assert min(each) >= 1
        assert whole <= sum(each) < whole + len(engines)
    for (part, _), count in zip(parts, engines, strict=True):
        assert 0 <= part - limit * count / sum(engines) < 1


def test_a_share_of_kv_memory_is_one_of_each_pools():
    settings = Settings(
        bus="kafka://k:9092",
        pools=("a", "b"),
        engine=tuple(EngineSettings(url=f"http://e{n}:80", pool="abb"[n]) for n in range(3)),
        quota=quotas(kv_share=0.5, calls_at_once=9),
    )
    [quota] = entitlements_of(msgspec.structs.replace(settings, pool="a")).quotas
    assert (quota.kv_share, quota.calls_at_once) == (0.5, 3)
    [whole] = entitlements_of(settings).quotas
    assert whole.calls_at_once == 9
