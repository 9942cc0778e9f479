"""Scaling by forecast beside scaling by what is seen, on what can be seen through."""

from statistics import fmean

import msgspec
import pytest

from experiments import e37_autoscaling as study
from experiments.azure_day import BUSIEST_H, day, rate_at
from experiments.e37_autoscaling import (
    FORECAST,
    HINDSIGHT,
    IN_FLIGHT,
    QUEUE,
    Row,
    figures,
    hours_at,
    section,
)
from experiments.hindsight_scaling import HindsightScaler
from experiments.reactive_scaling import InFlightScaler, QueueScaler
from experiments.sections import read_rows
from kairos.model import SECOND
from kairos.planner.demand import Look
from kairos.sim.autoscaled import PoolSeen


def seen(at_s, waiting=0, running=0, serving=1, starting=0):
    look = Look(at_s=at_s, begun=0, open_work=(), running=running)
    return PoolSeen(look=look, waiting=waiting, serving=serving, starting=starting)


def row(scaler, setting, hours, p95_s, seed=1, gap_s=None):
    return Row(
        commit="c",
        seed=seed,
        scaler=scaler,
        setting=setting,
        workflows=9,
        hours=24.0,
        instance_hours=hours,
        mean_s=1.0,
        p50_s=1.0,
        p95_s=p95_s,
        p99_s=p95_s,
        starts=1,
        drains=1,
        least_gap_s=gap_s,
    )


def test_a_day_has_its_rate_and_its_busiest_hour(data, monkeypatch):
    monkeypatch.setenv("KAIROS_DATA", str(data))
    at_us = day(1, 0.1)
    assert len(at_us) == pytest.approx(0.1 * 86_400, rel=0.25)
    assert at_us == sorted(at_us)
    assert at_us != day(2, 0.1)
    hours = [sum(at // SECOND // 3_600 == hour for at in at_us) for hour in range(24)]
    assert fmean(hours[BUSIEST_H - 3 : BUSIEST_H + 3]) > 3 * fmean(hours[1:7])
    assert rate_at(BUSIEST_H * 3_600, 1.0) == pytest.approx(1.7)


def test_by_the_queues_length_instances_are_started_for_what_waits_and_drained_when_quiet():
    scaler = QueueScaler(4, 300, most=5)
    assert scaler(seen(0, waiting=9)) == 3
    assert scaler(seen(15, waiting=9, starting=3)) == 0
    assert scaler(seen(30, serving=4)) == 0
    assert scaler(seen(329, serving=4)) == 0
    assert scaler(seen(330, serving=4)) == -1
    assert scaler(seen(345, serving=3)) == 0
    assert scaler(seen(360, waiting=100, serving=3)) == 2


def test_by_calls_in_flight_it_goes_up_at_once_and_down_after_the_window():
    scaler = InFlightScaler(10, 300, most=5)
    assert scaler(seen(0, running=10, waiting=25)) == 3
    assert scaler(seen(15, running=41, serving=4)) == 0
    assert scaler(seen(300, running=12, serving=4)) == 0
    assert scaler(seen(330, running=12, serving=4)) == -2


def test_with_hindsight_an_instance_serves_when_it_is_needed_and_goes_when_it_is_not():
    calls = {second: 40 if 3000 <= second < 6000 else 5 for second in range(0, 9000, 15)}
    scaler = HindsightScaler(calls, 10, start_s=180, every_s=15, most=12)
    started = next(at for at in range(0, 9000, 15) if scaler(seen(at)) == 3)
    assert 3000 - 180 - 150 < started <= 3000
    drained = next(at for at in range(3300, 9000, 15) if scaler(seen(at, serving=4)) == -3)
    assert 6000 <= drained <= 6150
    assert scaler(seen(4500, serving=4)) == 0


def test_hours_at_a_time_are_read_between_settings():
    rows = [row(QUEUE, (1,), 100.0, 10.0), row(QUEUE, (2,), 50.0, 20.0)]
    assert hours_at(rows, 15.0) == 75.0
    assert hours_at(rows, 10.0) == 100.0
    assert hours_at(rows, 99.0) == 50.0
    assert hours_at(rows, 5.0) == 100.0  # beyond what they reach


def test_the_section_compares_at_the_same_time():
    rows = [
        row(FORECAST, (2.0,), 60.0, 15.0, gap_s=600.0),
        row(QUEUE, (1.0,), 100.0, 10.0),
        row(QUEUE, (2.0,), 50.0, 20.0),
        row(IN_FLIGHT, (8.0,), 60.0, 15.0),
        row(HINDSIGHT, (8.0,), 48.0, 15.0),
    ]
    said = section(rows)
    assert "| 2 | queue length | -20.0% |" in said
    assert "| 2 | calls in flight | +0.0% |" in said
    assert "| 2 | hindsight | +25.0% |" in said
    assert "600 s at least" in said
    assert figures(rows)[0].value == 0.8


def test_g11_on_each_of_five_days_forecast_takes_15_percent_fewer_hours_at_equal_p95_and_no_flaps():
    """Of the rows that are kept."""
    rows = read_rows("e37_autoscaling", study.STUDY, quick=False)
    ratios = study._ratios(rows, (0.9,), QUEUE)
    assert len(ratios) == len(study.SEEDS)
    assert max(ratios) <= study.AIM
    ours = [each for each in rows if each.scaler == FORECAST]
    assert all(each.least_gap_s >= study.CALM_S for each in ours)


@pytest.mark.long
def test_a_short_day_is_scaled_and_paid_for(data, monkeypatch):
    monkeypatch.setenv("KAIROS_DATA", str(data))
    made = study._row((1, FORECAST, (0.8,), 0.5))
    assert msgspec.json.decode(msgspec.json.encode(made), type=Row) == made
    assert made.instance_hours >= 0.5
    assert made.p95_s >= made.p50_s > 0
