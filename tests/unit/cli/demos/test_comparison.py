"""Two runs compared: the record, and what is shown of it."""

from rich.console import Console

from kairos.cli.demos.tables import show_comparison
from kairos.core import compare_metrics

SPREADS = ("e2e_s", "s_per_token", "ttft_s")
KEYS = ("mean", "p50", "p90", "p95", "p99")


def spread(mean):
    return {key: mean and mean * (1 + place) for place, key in enumerate(KEYS)}


def record(mean, apps=None, queued=0.5):
    """A metrics record, as far as a comparison reads it."""
    figures = {name: spread(mean) for name in SPREADS} | {"queued_share": queued}
    return figures | ({"apps": apps} if apps is not None else {})


def figures(ratio, path=()):
    for key, value in ratio.items():
        yield from figures(value, (*path, key)) if isinstance(value, dict) else [(path, key, value)]


def test_figures_of_the_first_run_are_divided_by_those_of_the_second():
    first = record(2.0, {"qa": record(1.0), "rg": record(3.0)})
    second = record(4.0, {"qa": record(8.0), "cg": record(9.0)})

    compared = compare_metrics({"kairos": first, "fcfs": second})

    assert compared["runs"] == {"kairos": first, "fcfs": second}
    ratio = compared["ratio"]
    assert ratio["e2e_s"] == ratio["ttft_s"] == dict.fromkeys(KEYS, 0.5)
    assert ratio["apps"]["qa"]["s_per_token"] == dict.fromkeys(KEYS, 0.125)
    assert list(ratio["apps"]) == ["qa"]  # the others only one of them has


def test_both_runs_and_their_ratio_are_shown_for_each_application_and_for_all():
    first = record(2.0, {"qa": record(1.0, queued=0.25)})
    second = record(4.0, {"qa": record(8.0)})
    console = Console(width=100)
    with console.capture() as captured:
        show_comparison(console, compare_metrics({"kairos": first, "fcfs": second}))

    rows = [
        [cell.strip() for cell in line.split("\u2502")[1:-2]]
        for line in captured.get().splitlines()
        if "\u2502" in line
    ]
    assert rows[:6] == [
        ["qa", "kairos", "1.0", "2.0", "4.0", "5.0", "25%"],
        ["qa", "fcfs", "8.0", "16.0", "32.0", "40.0", "50%"],
        ["", "ratio", "0.12", "0.12", "0.12", "0.12", ""],
        ["all", "kairos", "2.0", "4.0", "8.0", "10.0", "50%"],
        ["all", "fcfs", "4.0", "8.0", "16.0", "20.0", "50%"],
        ["", "ratio", "0.50", "0.50", "0.50", "0.50", ""],
    ]
    assert len(rows) == 12
    assert rows[6][:3] == ["qa", "kairos", "1.000"]
