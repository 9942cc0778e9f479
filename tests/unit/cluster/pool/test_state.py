"""How far the active balancer of a pool has read."""

from kairos.cluster.pool.decision_publisher import Offsets


def test_nothing_is_committed_before_anything_was_read():
    assert Offsets().next is None
