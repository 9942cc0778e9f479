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
