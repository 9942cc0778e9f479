"""`python -m bench.flow_runs --quick`, in a process: what it measures must make sense."""

from rich.console import Console

from bench import flow_runs


def test_a_run_costs_something_and_its_memory_is_that_of_a_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cost, memory = flow_runs.measure(Console(quiet=True), quick=True)

    assert 10 < cost.value < 100_000
    assert 20 < memory.value < flow_runs.TARGET_MIB
    assert list(tmp_path.iterdir()) == [], "nothing is left"
