"""A tenant never holds more of the pool's KV memory than its share and less than one call."""

from hypothesis import given
from hypothesis import strategies as st

from kairos.core import SECOND, Arrived, Bounced, Cancelled, Finished, KairosError, Quota, Record
from tests.support.examples import examples
from tests.support.simulate import build

MEMORY, SHARE = 1_000, 0.3
FACTS = st.lists(
    st.tuples(
        st.sampled_from(["arrive"] * 3 + ["finish", "finish", "cancel", "bounce"]),
        st.sampled_from("aab"),
        st.integers(1, 10**6),
    ),
    min_size=10,
    max_size=80,
)


def fresh():
    instances = build.instance("i", seqs=9, kv=600), build.instance("j", seqs=9, kv=400)
    quota = Quota("a", kv_share=SHARE)
    return build.balancer(*instances, placement="least-kv", quotas=(quota,))


def held(balancer, tenant):
    running = [each for each, where in balancer.in_flight() if where is not None]
    sizes = [
        each.prompt_tokens + each.completion_tokens for each in running if each.tenant == tenant
    ]
    return sum(sizes), max(sizes, default=0)


@examples(50)
@given(FACTS)
def test_no_tenant_goes_beyond_its_share_by_a_call(facts):
    balancer, second, at, log = fresh(), fresh(), 0, []
    for n, (kind, tenant, number) in enumerate(facts):
        at += SECOND
        here = balancer.in_flight()
        running = [each.id for each, where in here if where is not None]
        name = running[number % len(running)] if running else None
        size = 1 + number % 150
        request = build.request(f"r{n}", at=at, tenant=tenant, prompt=size, completion=size)
        event = Arrived(request)
        if name is not None and kind != "arrive":
            event = {
                "finish": Finished(name),
                "cancel": Cancelled(here[number % len(here)][0].id),
                "bounce": Bounced(name, "why"),
            }[kind]
        try:
            commands = balancer.handle(event, at)
        except KairosError:
            continue
        log.append(Record(at, event, tuple(commands)))
        tokens, largest = held(balancer, "a")
        assert tokens - largest < SHARE * MEMORY
    for record in log:
        second.replay(record)
    assert second.in_flight() == balancer.in_flight()


def test_a_tenant_at_its_share_waits_while_another_goes_and_goes_on_when_a_call_ends():
    balancer = fresh()
    names = [f"a{n}" for n in range(4)]
    for name in names:
        request = build.request(name, tenant="a", prompt=80, completion=80)
        balancer.handle(Arrived(request), 0)
    waiting = [each.id for each, where in balancer.in_flight() if where is None]
    assert waiting == ["a2", "a3"]
    other = build.request("b", tenant="b", prompt=200, completion=200)
    [dispatch] = balancer.handle(Arrived(other), 1)
    assert (dispatch.request_id, dispatch.tenants_before) == ("b", 0)
    [dispatch] = balancer.handle(Finished("a0"), 2)
    assert dispatch.request_id == "a2"
