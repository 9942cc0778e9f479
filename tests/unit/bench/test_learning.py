"""What the benchmark of the queue times is what the queue does."""

from bench import learning
from bench.learning import POP, PUSH, REKEY, REMOVE, RENEW, AnyRoom, Queue, pop_first


def test_every_operation_on_the_queue_is_timed(monkeypatch):
    monkeypatch.setattr(learning, "QUEUED", 300)
    monkeypatch.setattr(learning, "OPERATIONS", 40)

    values = learning.queueing(seed=1)

    assert list(values) == [PUSH, REKEY, POP, REMOVE, RENEW]
    assert min(values.values()) >= 0


def test_a_pop_takes_the_first_of_the_queue(monkeypatch):
    monkeypatch.setattr(learning, "QUEUED", 50)
    queue = Queue(1).queue
    first = queue.first(AnyRoom(), 0).request.id

    pop_first(queue, AnyRoom())

    assert len(queue) == 49
    assert first not in queue
