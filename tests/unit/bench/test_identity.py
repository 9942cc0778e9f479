"""`python -m bench.identity`, in this process: what it measures must make sense."""

from rich.console import Console

from bench import identity


def test_every_figure_is_measured_and_ordered(monkeypatch):
    monkeypatch.setattr(identity, "WORKFLOWS", 5)
    monkeypatch.setattr(identity, "ROUNDS", 2)
    monkeypatch.setenv("KAIROS_BASE_URL", "")

    figures = identity.measure(Console(quiet=True))

    assert [each.name for each in figures] == list(identity.TARGETS_US)
    for figure in figures:
        mean, p50, p99 = (figure.detail[name] for name in identity.SYSTEMS)
        assert 0 < mean.lowest <= mean.median <= mean.highest
        assert 0 < p50.median <= p99.median


def test_the_call_that_is_measured_has_20_messages_and_20_kb():
    made = identity.Conversations(0)
    talk = made.begin()
    turns = [{"content": made.words(identity.MESSAGE_WORDS)} for _ in range(2 * identity.TURNS - 1)]

    assert len(talk) + len(turns) == identity.MESSAGES
    assert 18_000 < sum(len(each["content"]) for each in [*talk, *turns]) < 22_000
