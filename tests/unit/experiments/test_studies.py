"""Sections of the report that measure for themselves, on runs small enough to see through."""

from statistics import fmean

import msgspec
import pytest

from bench.report import Figure
from experiments import __main__ as command
from experiments import (
    e03_lengths,
    e08_queue_ranks,
    e20_overhead,
    e28_scale,
    e29_live,
    e30_yesterday,
    sections,
)
from experiments.claim import Study
from experiments.e08_queue_ranks import correlation, ranks
from experiments.e28_scale import AGENTS, Watch, app
from experiments.placements_vllm_workload import offered
from experiments.report import write_rows
from experiments.sections import SECTIONS, about, first_line, read_rows, rows_file
from kairos.dispatcher.placements import PLACEMENTS
from kairos.scheduler.policies import POLICIES
from kairos.sim.world import World
from kairos.workload.application import generate
from kairos.workload.workflows import Submission

pytestmark = pytest.mark.interpreted


def test_ranks_are_shares_and_equals_share_them():
    assert ranks([30, 10, 20]) == [1.0, 0.0, 0.5]
    assert ranks([7, 7, 1]) == [0.75, 0.75, 0.0]


def test_a_correlation_is_of_ranks_not_of_values():
    assert correlation(ranks([1, 2, 3, 1000]), ranks([1, 4, 9, 16])) == 1.0
    assert correlation(ranks([1, 2, 3]), ranks([3, 2, 1])) == -1.0


def test_who_goes_first_by_what_is_left_is_seen_in_the_ranks(monkeypatch):
    """Small, but with a queue: one engine that runs four at a time."""
    small = msgspec.structs.replace(e08_queue_ranks.WORKLOADS["colocated-8b"], pool=1)
    engine = msgspec.structs.replace(small.engine(), max_num_seqs=4)
    monkeypatch.setattr(type(small), "engine", lambda _: engine)
    monkeypatch.setitem(e08_queue_ranks.WORKLOADS, "colocated-8b", small)
    at = msgspec.structs.replace(e08_queue_ranks.rates()["colocated-8b"]["middle"], workflows=450)
    monkeypatch.setattr(e08_queue_ranks, "rates", lambda: {"colocated-8b": {"middle": at}})

    rows = {row.policy: row for row in e08_queue_ranks.measure(quick=True)}

    assert list(rows) == list(e08_queue_ranks.POLICIES)
    assert rows["kairos"].with_left > 0.4 > rows["fcfs"].with_left
    assert "| kairos |" in e08_queue_ranks.section(list(rows.values()))


def test_a_call_alone_takes_as_long_as_its_answer(data, monkeypatch):
    monkeypatch.setenv("KAIROS_DATA", str(data))
    monkeypatch.setattr(e03_lengths, "QUICK_WORKFLOWS", 10)
    rows = list(e03_lengths.measure(quick=True))

    by_agent = {(row.app, row.agent): row for row in rows if row.source == "model"}
    writer, router = by_agent["rg", "writer"], by_agent["qa", "router"]
    per_token = writer.mean_latency_s / writer.mean_completion_tokens
    assert router.mean_latency_s / router.mean_completion_tokens == pytest.approx(
        per_token, rel=0.3
    )
    assert 0.95 < writer.decode_share < 1
    recorded = [row for row in rows if row.source == "recorded"]
    assert {"claude_code", "qa"} <= {row.app for row in recorded}
    assert all(row.calls >= 30 and row.latency_s is None for row in recorded)
    assert "over 96.6 %" in e03_lengths.section(rows)


def test_every_decision_is_timed():
    planned = [
        Submission(at_us=n * 1000, workflow=each) for n, each in enumerate(generate(app(1), 5, 1))
    ]
    engines = {"a": e28_scale.profile("a40-llama3-8b")}
    world = World(planned, engines, POLICIES["kairos"], PLACEMENTS["kairos"])
    watch = Watch(world)
    world.run()

    calls = sum(len(each.workflow.calls) for each in planned)
    assert [len(us) for us in watch.us.values()] == [calls, calls]
    assert min(map(min, watch.us.values())) > 0


def test_agents_of_the_scaled_applications_differ():
    one, other = app(1), app(2)
    assert len(one.agents) == AGENTS
    assert one != other
    assert app(1) == one


SLOW = msgspec.structs.replace(e28_scale.profile("a40-llama3-8b"), max_num_seqs=2)


def test_the_model_begins_with_what_was_learnt_before_and_counts_only_what_came_then():
    before, submissions = offered(6, 4.0, 1000), offered(36, 4.0, 1)

    found = e29_live.simulated(SLOW, before, submissions, "kairos", "kairos")

    other = e29_live.simulated(SLOW, offered(60, 4.0, 1000), submissions, "kairos", "kairos")
    alone = World(submissions, {"a": SLOW, "b": SLOW}, POLICIES["fcfs"], PLACEMENTS["round-robin"])
    alone.run()
    first = e29_live.simulated(SLOW, before, submissions, "fcfs", "round-robin")
    # What came before is no part of it, and is not in its way.
    assert first.e2e_s["mean"] == pytest.approx(alone.metrics.record()["e2e_s"]["mean"], rel=0.02)
    assert found.e2e_s["mean"] < first.e2e_s["mean"]
    assert found != other


def live_rows(measured, simulated):
    """Of two repetitions; means by combination and repetition."""

    def side(mean):
        return e29_live.Side(
            e2e_s={"mean": mean}, s_per_token={"mean": mean / 100}, preemptions_per_call=0.25
        )

    return [
        e29_live.Row(
            commit="c",
            repetition=repetition,
            place=1,
            combination=name,
            workflows=9,
            calls=20,
            measured=side(measured[name][repetition - 1]),
            simulated=side(simulated[name][repetition - 1]),
            others_cores=0.1,
            profile=SLOW,
        )
        for repetition in (2, 1)
        for name in measured
    ]


def test_what_was_measured_and_what_the_model_said_are_compared_within_repetitions(tmp_path):
    rows = live_rows(
        {"parrot": [10.0, 20.0], "kairos": [5.0, 12.0]},
        {"parrot": [10.0, 10.0], "kairos": [6.0, 6.0]},
    )

    said = e29_live.section(rows)
    assert "| parrot | 15 | 10 |  |  |" in said
    assert "| kairos | 8.5 | 6 | -45.0 [-50.0, -40.0] | -40.0 [-40.0, -40.0] |" in said
    figure = next(
        each
        for each in e29_live.figures(
            [
                *rows,
                *live_rows({"ayo": [9, 9]}, {"ayo": [9, 9]}),
                *live_rows({"kairos, paper": [9, 9]}, {"kairos, paper": [9, 9]}),
            ]
        )
        if each.name == "real vLLM, mean end to end, kairos over parrot"
    )
    assert (figure.value, figure.detail["simulated"], figure.met) == (0.55, 0.6, True)
    e29_live.draw(rows, tmp_path / "live")
    assert (tmp_path / "live.svg").exists()


def test_an_export_says_nearly_what_another_policy_would_have_done():
    planned = offered(60, 4.0, 1)

    times = e30_yesterday.yesterdays(planned, {"a": SLOW, "b": SLOW})

    assert {frozenset(of) for of in times.values()} == {
        frozenset(each.workflow.id for each in planned)
    }
    mean = {name: fmean(took for _, took in of.values()) for name, of in times.items()}
    predicted, true = mean[e30_yesterday.PREDICTED], mean[e30_yesterday.TRUE]
    assert predicted == pytest.approx(true, rel=0.05)
    assert true < 0.8 * mean[e30_yesterday.WAS]


def test_a_course_is_of_equally_many_workflows_in_the_order_of_their_begin():
    times = {f"w{n}": (float(n), 10.0 * n) for n in reversed(range(2 * e30_yesterday.BINS))}

    found = e30_yesterday.course(times)

    assert found[:2] == [(0.5, 5.0), (2.5, 25.0)]
    assert len(found) == e30_yesterday.BINS
    assert len(e30_yesterday.course({"w": (1.0, 2.0)})) == 1


def test_each_section_says_what_it_is_about():
    for name in SECTIONS:
        assert first_line(name)[-1] in ".?"
        assert "\n\n" in about(name), name


def test_rows_of_a_study_are_found_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sections, "RESULTS", tmp_path)
    row = e08_queue_ranks.Row(
        commit="c", policy="fcfs", seed=1, requests=9, with_own=0.1, with_left=0.2, points=[(0, 1)]
    )
    study = SECTIONS["e08_queue_ranks"]
    assert read_rows("e08_queue_ranks", study, quick=False) == []

    write_rows(rows_file("e08_queue_ranks", quick=False), [row])

    assert read_rows("e08_queue_ranks", study, quick=False) == [row]


def test_what_the_benches_measure_stands_beside_the_papers_figures(monkeypatch):
    few = msgspec.structs.replace(
        e20_overhead.placement.QUICK, size=e20_overhead.placement.WHOLE.size
    )
    monkeypatch.setattr(e20_overhead.placement, "WHOLE", few)
    monkeypatch.setattr(e20_overhead, "MOST", 100)
    monkeypatch.setattr(
        e20_overhead,
        "PAPER",
        {k: v for k, v in e20_overhead.PAPER.items() if "5,000" not in k or "changed" in k},
    )
    monkeypatch.setattr(e20_overhead.learning, "QUEUED", 500)
    monkeypatch.setattr(e20_overhead.learning, "OPERATIONS", 100)
    monkeypatch.setattr(e20_overhead.learning, "EVENTS", 100)

    rows = list(e20_overhead.measure(quick=True))

    assert [row.name for row in rows] == list(e20_overhead.PAPER)
    assert all(len(row.values) == 1 and row.values[0] > 0 for row in rows)
    assert "with prefixes, us | 4,100 |" in e20_overhead.section(rows)


class Measured(msgspec.Struct):
    commit: str
    value: int


def test_a_study_is_measured_once_for_a_commit_and_its_figures_are_kept(tmp_path, monkeypatch):
    measured, kept = [], []
    here = {"commit": "abc+"}

    def measure(quick):
        measured.append(quick)
        yield Measured(here["commit"], len(measured))

    study = Study(
        title="A study",
        row=Measured,
        measure=measure,
        section=lambda rows: f"found {rows[0].value}",
        figures=lambda rows: [Figure(name="f", value=rows[0].value, unit="", target=None)],
    )
    monkeypatch.setattr(sections, "RESULTS", tmp_path)
    monkeypatch.setattr(command, "SECTIONS", {"study": study})
    monkeypatch.setattr(command, "commit", lambda: here["commit"])
    monkeypatch.setattr(command, "write_page", lambda _: (tmp_path / "REPORT.md", []))
    monkeypatch.setattr(command, "add_figures", kept.extend)
    for at_commit in ("abc+", "abc", "def"):
        here["commit"] = at_commit
        command._run(["study"], quick=False, processes=1)
        command._report(quick=False)

    study = msgspec.structs.replace(study, measure=None)
    monkeypatch.setattr(command, "SECTIONS", {"study": study})
    here["commit"] = "ghi"
    command._run(["study"], quick=False, processes=1)  # a command of its own measures it

    assert measured == [False, False]
    assert [figure.value for figure in kept] == [1, 1, 2]
