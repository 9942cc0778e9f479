"""`python -m bench.bus --quick` as `make bench` starts it: what it measures must make sense."""

import subprocess
import sys

import msgspec
import pytest

from bench import bus, bus_calls, messages, overload
from bench.report import Figure
from tests.support.processes import Process

LIMIT_S = 240


@pytest.fixture
async def figures(kafka, tmp_path):
    """By name."""
    path = tmp_path / "results.json"
    command = Process(
        tmp_path, "bench", "--quick", "--results", path,
        module="bench.bus", environ={"KAIROS_BENCH_BUS": kafka},
    )  # fmt: skip
    with command as running:
        await running.until_it_says(bus.FIGURES[-1][0], LIMIT_S)  # after all that it measures
    return {each.name: each for each in msgspec.json.decode(path.read_bytes(), type=list[Figure])}


@pytest.mark.kafka
@pytest.mark.timeout(LIMIT_S + 60)
async def test_what_kafka_costs_is_measured_whole_and_makes_sense(figures):
    assert list(figures) == [name for name, *_ in bus.FIGURES]
    # The difference of two may be anything; and on a busy machine the next agent may have the
    # message before the one that sent it hears that its transaction has ended.
    differences = {name for name, *_ in bus.ADDED} | {messages.AFTER_COMMIT}
    for name, figure in figures.items():
        for spread in figure.detail.values():
            assert spread["lowest"] <= spread["median"] <= spread["highest"], name
            assert spread["lowest"] >= 0 or name in differences, name
    value = {name: figure.value for name, figure in figures.items()}

    for leg in (messages.PUBLISHED, messages.HANDED_ON):
        for which in messages.IN_FLIGHT.values():
            assert 0 < value[leg.format("p50", which)] <= value[leg.format("p99", which)]
    one_at_a_time = messages.HANDED_ON.format("p50", messages.IN_FLIGHT[1])
    assert 0 < value[messages.COMMIT] < value[one_at_a_time]
    assert 0 < value[messages.RELAYED_RATE] < value[messages.RATE]
    calls = figures[bus_calls.CALL.format("p50")]
    assert calls.detail.keys() == figures[bus_calls.CPU].detail.keys() == set(bus.SYSTEMS)
    assert value[bus_calls.CPU] > 0

    tasks = overload.WARM_UP + overload.TIMES * overload.CAPACITY * bus.QUICK.overload_s
    assert value[overload.PUBLISHED] == tasks
    assert value[overload.LOST] == value[overload.TWICE] == 0
    too_many = (overload.TIMES - 1) * overload.CAPACITY * bus.QUICK.overload_s
    assert 0.9 * too_many < value[overload.LAG] < tasks
    assert overload.CAPACITY / 4 < value[overload.RATE] <= overload.CAPACITY
    assert value[overload.DRAIN] > 0.9 * too_many / overload.CAPACITY
    assert 0 < value[overload.MEMORY_BEFORE] < value[overload.MEMORY_GREATEST] < 300


def test_without_a_kafka_the_bench_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    monkeypatch.delenv("KAIROS_BENCH_BUS", raising=False)
    command = [sys.executable, "-m", "bench.bus", "--quick"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"KAFKA_HOME={tmp_path} holds no Kafka" in done.stderr
    assert "KAIROS_BENCH_BUS=kafka://HOST:PORT" in done.stderr
