"""`python -m bench.reading`, in this process: what it measures must make sense."""

from bench import reading


def test_every_step_of_every_case_is_measured(monkeypatch):
    monkeypatch.setattr(reading, "CALLS", 10)
    monkeypatch.setattr(reading, "ROUNDS", 1)

    found = reading.measure()

    assert list(found) == list(reading.CASES)
    for steps in found.values():
        assert list(steps) == list(reading.STEPS)
        assert all(us > 0 for us in steps.values())
