"""What the benchmark of the queue times is what the queue does."""

from bench import learning
from bench.learning import POP, PUSH, REKEY, REMOVE, RENEW


def test_every_operation_on_the_queue_is_timed(monkeypatch):
    monkeypatch.setattr(learning, "QUEUED", 300)
    monkeypatch.setattr(learning, "OPERATIONS", 40)

    values = learning.queueing(seed=1)

    assert list(values) == [PUSH, REKEY, POP, REMOVE, RENEW]
    assert min(values.values()) >= 0
