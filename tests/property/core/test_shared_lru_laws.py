"""What tenants remember within one bound, beside a plain reckoning of the same."""

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import Holdings, SharedLru

TENANTS = ("a", "b", "c", "d")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("put", "put", "put", "touch", "remove")),
        st.sampled_from(TENANTS),
        st.integers(0, 30),
        st.integers(1, 5),
    ),
    max_size=200,
)


class Plain:
    """The same list, in which everything is looked for."""

    def __init__(self, most):
        self.most = most
        self.entries = OrderedDict()  # tenant and number -> weight, longest unused first

    def held(self, tenant):
        return sum(weight for (owner, _), weight in self.entries.items() if owner == tenant)

    def put(self, tenant, number, weight):
        self.entries.pop((tenant, number), None)
        out = []
        while self.entries and sum(self.entries.values()) + weight > self.most:
            most = max(map(self.held, TENANTS))
            largest = [each for each in TENANTS if self.held(each) == most]
            giver = tenant if tenant in largest else largest[0]
            out.append(next(each for each in self.entries if each[0] == giver))
            del self.entries[out[-1]]
        self.entries[tenant, number] = weight
        return out


@given(steps=STEPS, most=st.integers(1, 40), weighs=st.booleans())
def test_the_list_is_what_a_plain_reckoning_makes_of_it(steps, most, weighs):
    lru, plain = SharedLru(most), Plain(most)
    for what, tenant, number, drawn in steps:
        key, weight = (tenant, number), drawn if weighs else 1
        if what == "put":
            assert [each for each, _ in lru.put(tenant, key, number, weight)] == plain.put(
                tenant, number, weight
            )
        elif what == "touch" and key in lru:
            lru.touch(tenant, key)
            plain.entries.move_to_end(key)
        elif what == "remove":
            assert (lru.remove(tenant, key) is None) == (plain.entries.pop(key, None) is None)
        assert [*lru] == [*plain.entries]
        assert lru.weight == sum(plain.entries.values())
        for each in TENANTS:
            assert [*lru.of(each)] == [key for key in plain.entries if key[0] == each]


@given(steps=STEPS, most=st.integers(1, 40))
def test_of_one_tenant_it_is_a_list_without_tenants(steps, most):
    lru, plain = SharedLru(most), OrderedDict()
    for _, _, number, _ in steps:
        lru.put("a", number, number)
        plain[number] = number
        plain.move_to_end(number)
        if len(plain) > most:
            plain.popitem(last=False)
        assert [*lru] == [*plain]


@given(
    others=st.lists(st.tuples(st.sampled_from("bcd"), st.integers(0, 10**6)), max_size=300),
    most=st.integers(8, 40),
)
def test_who_needs_no_more_than_a_fair_part_loses_nothing(others, most):
    lru = SharedLru(most)
    for number in range(most // len(TENANTS)):
        lru.put("a", ("a", number), number)
    for tenant, number in others:
        lru.put(tenant, (tenant, number), number)
    assert len(lru.of("a")) == most // len(TENANTS)


def test_a_newcomer_finds_room_where_one_holds_everything():
    lru = SharedLru(100)
    for number in range(1000):
        lru.put("flood", ("flood", number), number)
    for number in range(50):
        lru.put("other", ("other", number), number)
        lru.put("flood", ("flood", "again", number), number)
    assert len(lru.of("other")) == 50


@pytest.mark.parametrize("rounds", [5_000])
def test_tenants_that_come_and_go_leave_nothing_behind(rounds):
    holdings = Holdings()
    holdings.add("stays", 1)
    for number in range(rounds):
        holdings.add(f"t{number}", 3)
        holdings.add(f"t{number}", -3)
    assert [*holdings] == ["stays"]
    assert len(holdings._heap) < 100
    assert holdings.gives_way("new") == "stays"
