"""What is said of a lead: ratios to none, within repetitions."""

import pytest

from experiments.lead_vllm import LEADS, figures, ratios


def found(factor):
    """Two repetitions, of which the second takes twice as long, whatever the lead."""
    return {
        lead: [{"elapsed": n * 10.0 * factor**lead, "mean": n * 4.0} for n in (1, 2)]
        for lead in LEADS
    }


def test_times_are_compared_within_a_repetition():
    ratio = ratios(found(0.9), 2, "elapsed")
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((0.81, 0.81, 0.81))


def test_each_lead_beyond_none_has_a_figure_for_each_measure():
    made = figures(found(0.9))
    assert len(made) == 2 * (len(LEADS) - 1)
    values = {figure.name: figure.value for figure in made}
    assert values["real vLLM, until all had ended, a lead of 1 over none"] == 0.9
    assert values["real vLLM, mean end-to-end latency, a lead of 4 over none"] == 1.0


def test_of_one_repetition_nothing_follows():
    assert figures({lead: [{"elapsed": 1.0, "mean": 1.0}] for lead in LEADS}) == []
