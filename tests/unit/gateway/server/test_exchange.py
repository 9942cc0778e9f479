"""What an exchange tells whoever answers it."""

from kairos.gateway.server.exchange import Exchange


class SlowWire:
    """Takes no step before it is told to."""

    def __init__(self):
        self.steps = []

    def in_turn(self, caller, step):
        self.steps.append(step)


class Answering:
    def __init__(self):
        self.told = 0

    def client_left(self):
        self.told += 1


def left(wire):
    exchange = Exchange(wire, "POST", [], "someone")
    exchange.answering = Answering()
    exchange.note_client_left()
    return exchange, exchange.answering


def test_that_a_client_left_is_told_at_the_loops_pace():
    """Thousands may leave at once: others' requests are not to wait for all that follows."""
    wire = SlowWire()
    exchange, answering = left(wire)
    assert exchange.has_left
    assert answering.told == 0

    for step in wire.steps:
        step()
    assert answering.told == 1
    assert exchange.answering is None


def test_whoever_has_ended_meanwhile_is_told_nothing():
    wire = SlowWire()
    exchange, answering = left(wire)
    exchange.answering = None
    for step in wire.steps:
        step()
    assert answering.told == 0


def test_what_is_written_for_a_client_that_left_is_dropped_and_nobody_waits_for_it():
    """A forwarder would pause the engine's answer for good."""
    exchange, _ = left(SlowWire())
    exchange.start(200, [])
    assert exchange.write(b"to nobody", more=True)
    assert exchange.write(b"", more=False)
    assert not exchange.is_started
