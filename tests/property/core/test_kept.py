"""Memory that is kept, slot by slot: by numpy and by the kernel as one context after another says,
whatever came and went."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import SLOT_AT_US, SLOTS, Ledger
from kairos.core.dispatcher.demand import SLOT_US
from kairos.core.dispatcher.kv_retention import KeptContexts
from kairos.core.dispatcher.native import KERNEL
from kairos.core.dispatcher.survival_packing import SurvivalPacking
from tests.support.core import kernel
from tests.support.simulate import build

AT = 10**15  # an instant of these years
UNTIL = st.one_of(
    st.integers(-(10**6), 40 * 10**6), st.integers(-2, SLOTS + 2).map(lambda n: n * int(SLOT_US))
)


@st.composite
def what_is_kept(draw):
    """Columns to which contexts were added, and from which some were removed; and what is left."""
    columns, left = KeptContexts(), {}
    for name, (tokens, for_us) in enumerate(
        draw(st.lists(st.tuples(st.integers(1, 10**6), UNTIL), max_size=40))
    ):
        columns.add("t", name, tokens, AT + for_us)
        left[name] = tokens, for_us
        if draw(st.booleans()):
            gone = draw(st.integers(0, name))
            columns.remove(gone)
            left.pop(gone, None)
    return columns, left


def one_by_one(left):
    slots = SLOT_AT_US.tolist()
    return [sum(tokens for tokens, us in left.values() if us > slot) for slot in slots]


@given(what_is_kept())
def test_columns_know_what_is_left(made):
    columns, left = made
    assert len(columns) == len(left)
    assert columns.tokens == sum(tokens for tokens, _ in left.values())
    assert sorted(columns.over(AT)) == [name for name, (_, us) in left.items() if us <= 0]
    if left:
        assert columns.gives_way("t") == next(iter(left))


@given(what_is_kept())
def test_numpy_keeps_for_each_slot_what_is_kept_until_then(made):
    columns, left = made
    assert columns.by_slot(AT).tolist() == one_by_one(left)


@pytest.mark.usefixtures("kernel")
@given(what_is_kept())
def test_so_does_the_kernel(made):
    columns, left = made
    ledger = Ledger(build.Lengths())
    ledger.add_instance(build.instance("a", kv=1_000))
    ledger.retention._kept["a"] = columns
    packing = SurvivalPacking(ledger, KERNEL)
    means, variances, most = kernel.forecast(packing, ledger.instances["a"], AT)
    expected = np.array(one_by_one(left), dtype=float)
    assert means.tolist() == most.tolist() == expected.tolist()
    assert not variances.any()
