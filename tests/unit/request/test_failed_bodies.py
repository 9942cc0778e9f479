"""Bodies at which engines failed, told apart by a hash."""

from kairos.core import REMEMBERED_US, Arrived, Bounced, Cancelled, Failed, Finished
from kairos.request import FailedBodies
from kairos.request.failed_bodies import _MOST_LENGTHS
from tests.support.simulate import build

BODY, ALIKE, OTHER = b'{"a": 1}', b'{"a": 2}', b"{}"


def named(bodies, event, content, at, tenant="t"):
    return bodies.with_hash(event, tenant, content, lambda: at)


def known(bodies, content, at):
    """What is told of one that arrives."""
    return named(bodies, Arrived(build.request("r")), content, at).body


def test_a_body_that_failed_is_known_again_and_no_other():
    bodies = FailedBodies()
    assert known(bodies, BODY, 0) is None

    bounced = named(bodies, Bounced("r", "broke"), BODY, 0)

    assert bounced.body == known(bodies, BODY, 1)
    assert known(bodies, ALIKE, 1) not in (None, bounced.body)
    assert known(bodies, OTHER, 1) is None, "none of its length failed"


def test_what_is_no_fault_of_an_instance_is_not_named():
    bodies = FailedBodies()
    for end in (Finished("r"), Cancelled("r"), Failed("r", "engine answered 400")):
        assert named(bodies, end, BODY, 0) is end
    assert known(bodies, BODY, 0) is None
    assert named(bodies, Failed("r", "broke", by_instance=True), BODY, 0).body is not None


def test_it_is_forgotten_after_a_while():
    bodies = FailedBodies()
    named(bodies, Bounced("r", "broke"), BODY, 0)
    assert known(bodies, BODY, REMEMBERED_US) is not None
    assert known(bodies, BODY, REMEMBERED_US + 1) is None


def test_the_hash_is_of_a_key_of_the_process():
    ends = [named(FailedBodies(), Bounced("r", "broke"), BODY, 0) for _ in range(2)]
    assert ends[0].body != ends[1].body
    assert max(end.body for end in ends) < 1 << 53


def test_lengths_without_end_take_bounded_room():
    bodies = FailedBodies()
    for length in range(_MOST_LENGTHS + 9):
        named(bodies, Bounced("r", "broke"), b" " * length, 0)
    assert known(bodies, b"", 0) is None
    assert known(bodies, b" " * (_MOST_LENGTHS + 8), 0) is not None


def test_a_tenants_failed_body_is_known_again_beside_another_tenants_of_every_length():
    bodies = FailedBodies()
    named(bodies, Bounced("r", "broke"), BODY, 0)
    for length in range(100, 100 + 2 * _MOST_LENGTHS):
        named(bodies, Bounced("r", "broke"), b" " * length, 0, tenant="flood")
    assert known(bodies, BODY, 0) is not None
    named(bodies, Bounced("r", "broke"), BODY, 1, tenant="flood")
    assert known(bodies, BODY, 2) is not None
