"""Workflow files, arrivals, and the burstiness of both generated and real ones."""

import gzip
import json
import os
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import SECOND, InvalidFile, SetupError
from kairos.host import files
from kairos.host.files import MAX_LINE_BYTES
from kairos.simulate import FileCall, draw_arrivals
from kairos.simulate.workload import arrival_process
from kairos.simulate.workload.arrival_process import (
    MODELS,
    arrivals_within,
    measure_burstiness,
    time_scale,
)
from kairos.simulate.workload.azure_trace import from_trace, read_trace
from kairos.simulate.workload.workflow_file import read_workflows, write_workflows

ROOT = Path(__file__).resolve().parents[4]
NAMES = sorted(MODELS)

CALL = {
    "workflow_id": "w1",
    "app": "rg",
    "agent": "writer",
    "upstream": "researcher",
    "call_index": 1,
    "prompt_tokens": 200,
    "completion_tokens": 30,
}


def call(**changes) -> FileCall:
    return FileCall(**(CALL | changes))


def lines(*rows: dict[str, object]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write_trace(path: Path, *seconds: float) -> Path:
    rows = [f"2023-11-16 18:00:{second:010.7f},10,5" for second in seconds]
    path.write_text("\r\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    return path


# Workflow files


def test_a_workflow_file_is_read_call_by_call_and_unknown_fields_are_ignored(tmp_path):
    path = tmp_path / "w.jsonl"
    path.write_bytes(lines(CALL | {"gap_ms": 7, "tok": "api"}, CALL | {"parallel_group": None}))

    assert list(read_workflows(path)) == [call(gap_ms=7), call()]


def test_gzip_is_known_by_content_and_not_by_name(tmp_path):
    packed, plain = tmp_path / "w.jsonl", tmp_path / "w.jsonl.gz"
    packed.write_bytes(gzip.compress(lines(CALL)))
    plain.write_bytes(lines(CALL))

    assert list(read_workflows(packed)) == list(read_workflows(plain)) == [call()]


def test_blank_lines_are_left_out_but_counted(tmp_path):
    path = tmp_path / "w.jsonl"
    path.write_bytes(lines(CALL) + b"\n" + b"{}\n")

    with pytest.raises(InvalidFile, match=r"w\.jsonl:3: "):
        list(read_workflows(path))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (lines({k: v for k, v in CALL.items() if k != "agent"}), "missing required field `agent`"),
        (lines(CALL | {"prompt_tokens": -5}), r"`int` >= 1 - at `\$.prompt_tokens`"),
        (lines(CALL | {"completion_tokens": 0}), r"`int` >= 1 - at `\$.completion_tokens`"),
        (lines(CALL | {"prompt_tokens": 10**9}), r"<= 10000000 - at `\$.prompt_tokens`"),
        (lines(CALL | {"gap_ms": -1}), r">= 0 - at `\$.gap_ms`"),
        (lines(CALL | {"app": ""}), r"length >= 1 - at `\$.app`"),
        (lines(CALL | {"agent": "a\nb"}), r"matching regex .* - at `\$.agent`"),
        (lines(CALL | {"agent": "a\n"}), r"matching regex .* - at `\$.agent`"),
        (lines(CALL | {"app": "\x1b[31m"}), r"matching regex .* - at `\$.app`"),
        (b"[1, 2]\n", "Expected `object`"),
        (b"not json\n", "malformed"),
        (b'{"app": "\xff"}\n', "utf-8"),
        (b'{"deep": ' + b"[" * 100_000 + b"\n", "recursion"),
        (b" " * MAX_LINE_BYTES + b"{}\n", "longer than"),
    ],
)
def test_a_broken_line_is_named_with_what_is_wrong(tmp_path, line, problem):
    path = tmp_path / "w.jsonl"
    path.write_bytes(lines(CALL) + line)
    calls = read_workflows(path)

    assert next(calls) == call()
    with pytest.raises(InvalidFile, match=rf"w\.jsonl:2: .*{problem}"):
        next(calls)


@pytest.mark.parametrize("damage", [lambda b: b[:-20], lambda b: b[:15] + b"\xff" * 9 + b[24:]])
def test_damaged_gzip_is_named(tmp_path, damage):
    path = tmp_path / "w.jsonl"
    path.write_bytes(damage(gzip.compress(lines(*[CALL] * 50))))

    with pytest.raises(InvalidFile, match=r"w\.jsonl.*cannot be read"):
        list(read_workflows(path))


def test_more_lines_than_any_file_has_are_refused_be_they_blank(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_LINES", 3)
    path = tmp_path / "w.jsonl.gz"
    path.write_bytes(gzip.compress(lines(CALL) + b"\n\n"))
    assert list(read_workflows(path)) == [call()]
    path.write_bytes(gzip.compress(lines(CALL) + b"\n\n\n"))

    with pytest.raises(InvalidFile, match="more than 3 lines"):
        list(read_workflows(path))


def test_what_cannot_be_read_twice_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(InvalidFile, match="cannot be read: not a regular file"):
            list(read_workflows(path))
    with pytest.raises(InvalidFile, match="cannot be read: embedded null byte"):
        list(read_workflows(tmp_path / "\0"))


def test_a_missing_file_is_an_expected_error(tmp_path):
    with pytest.raises(InvalidFile, match=r"none\.jsonl: cannot be read: .*No such file"):
        list(read_workflows(tmp_path / "none.jsonl"))


text = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=20)
calls = st.builds(
    FileCall,
    workflow_id=text,
    app=text,
    agent=text,
    upstream=st.none() | text,
    call_index=st.integers(0, 10**6),
    prompt_tokens=st.integers(1, 10**7),
    completion_tokens=st.integers(1, 10**7),
    parallel_group=st.none() | text,
    gap_ms=st.none() | st.integers(0, 10**9),
    cached_prefix_tokens=st.none() | st.integers(0, 10**7),
    shared_prefix_tokens=st.none() | st.integers(0, 10**7),
)


@pytest.mark.parametrize("name", ["w.jsonl", "w.jsonl.gz"])
@given(written=st.lists(calls, max_size=8))
def test_what_is_written_is_read_again(tmp_path_factory, name, written):
    path = tmp_path_factory.mktemp("w") / name
    write_workflows(path, written)

    assert list(read_workflows(path)) == written


def test_gzip_is_written_for_a_name_that_says_so_and_twice_the_same(tmp_path):
    path = tmp_path / "w.jsonl.gz"
    write_workflows(path, [call()])
    first = path.read_bytes()
    (tmp_path / "other").mkdir()
    write_workflows(tmp_path / "other" / "v.jsonl.gz", [call()])

    assert json.loads(gzip.decompress(first)) == CALL
    assert first[4:8] == bytes(4)  # where gzip keeps the time of writing
    assert (tmp_path / "other" / "v.jsonl.gz").read_bytes() == first


@pytest.mark.parametrize("name", ["w.jsonl", "w.jsonl.gz"])
def test_a_file_that_cannot_be_finished_leaves_the_old_one_alone(tmp_path, name):
    path = tmp_path / name
    path.write_text("old")

    with pytest.raises(SetupError, match="prompt_tokens"):
        write_workflows(path, [call(), call(prompt_tokens=0)])

    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert path.read_text() == "old"


def test_a_place_that_cannot_be_written_is_an_expected_error(tmp_path):
    with pytest.raises(SetupError, match=r"cannot write .*No such file or directory"):
        write_workflows(tmp_path / "none" / "w.jsonl", [call()])


def test_the_example_in_the_readme_is_a_workflow_file(tmp_path):
    readme = (ROOT / "traces" / "README.md").read_text()
    path = tmp_path / "w.jsonl"
    path.write_text(readme.split("```jsonl\n")[1].split("```")[0])

    assert [call.agent for call in read_workflows(path)] == ["researcher", "writer"]


# Arrivals


@given(
    name=st.sampled_from(NAMES),
    count=st.integers(1, 200),
    rate=st.floats(0.01, 1000),
    seed=st.integers(0, 2**32),
)
def test_arrivals_ascend_from_zero_and_are_the_same_for_the_same_seed(name, count, rate, seed):
    instants = draw_arrivals(name, count, rate, seed)

    assert len(instants) == count
    assert instants[0] == 0
    assert instants == sorted(instants)
    assert instants == draw_arrivals(name, count, rate, seed)


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_gives_other_arrivals(name):
    assert draw_arrivals(name, 20, 1.0, seed=1) != draw_arrivals(name, 20, 1.0, seed=2)


@given(name=st.sampled_from(NAMES), faster=st.floats(1, 1000), seed=st.integers(0, 99))
def test_a_rate_is_reached_by_stretching_time(name, faster, seed):
    slow, fast = draw_arrivals(name, 50, 1.0, seed), draw_arrivals(name, 50, faster, seed)

    assert fast == pytest.approx([at / faster for at in slow], abs=1)


SEEDS = range(8)
TOLERANCE = {"poisson": 0.05, "azure-conv": 0.12, "azure-code": 0.15}


@pytest.mark.parametrize("rate", [0.5, 8.0])
@pytest.mark.parametrize("name", NAMES)
def test_long_series_are_as_bursty_as_the_trace_at_any_rate(name, rate):
    model, scale = MODELS[name], time_scale(name, rate)
    series = [draw_arrivals(name, 20_000, rate, seed) for seed in SEEDS]
    figures = [measure_burstiness(each, scale) for each in series]

    near = TOLERANCE[name]
    assert fmean(f["cv"] for f in figures) == pytest.approx(model.cv, rel=near)
    assert {
        window: fmean(f["index_of_dispersion"][window] for f in figures)
        for window in model.index_of_dispersion
    } == pytest.approx(model.index_of_dispersion, rel=near)
    assert fmean(20_000 * SECOND / each[-1] for each in series) == pytest.approx(rate, rel=0.05)


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.5, 6.0])
def test_gamma_gaps_have_the_mean_and_the_cv_that_were_asked_for(cv):
    series = [draw_arrivals(f"gamma:{cv}", 20_000, 4.0, seed) for seed in SEEDS]

    assert fmean(measure_burstiness(each)["cv"] for each in series) == pytest.approx(cv, rel=0.05)
    assert fmean(20_000 * SECOND / each[-1] for each in series) == pytest.approx(4.0, rel=0.05)


def test_gamma_gaps_of_cv_1_are_a_poisson_process_and_others_come_to_the_square_of_the_cv():
    def dispersion(cv: float) -> float:
        series = [draw_arrivals(f"gamma:{cv}", 20_000, 4.0, seed) for seed in SEEDS]
        return fmean(measure_burstiness(each)["index_of_dispersion"][60] for each in series)

    assert dispersion(1.0) == pytest.approx(1.0, rel=0.15)
    assert dispersion(0.3) == pytest.approx(0.3**2, rel=0.15)
    assert dispersion(2.5) == pytest.approx(2.5**2, rel=0.15)


@pytest.mark.parametrize("name", ["gamma", "gamma:", "gamma:0", "gamma:-2", "gamma:nan", "gamma:x"])
def test_a_gamma_process_without_a_cv_is_answered_with_how_to_write_one(name):
    with pytest.raises(SetupError, match=f"'{name}': write gamma:CV with a CV of 0.01 to 100"):
        draw_arrivals(name, 5, 1.0, 0)


@pytest.mark.parametrize("name", [*NAMES, "gamma:3"])
def test_arrivals_for_a_time_are_the_first_ones_of_the_series(name):
    within = arrivals_within(name, 40.0, 2.0, seed=5)
    longer = draw_arrivals(name, len(within) + 1, 2.0, seed=5)

    assert within == longer[:-1]
    assert within[-1] < 40 * SECOND <= longer[-1]


def test_arrivals_without_end_are_refused(monkeypatch):
    for duration_s in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(SetupError, match="the duration must be above 0 seconds"):
            arrivals_within("poisson", duration_s, 1.0, 0)
    monkeypatch.setattr(arrival_process, "MOST_ARRIVALS", 100)
    with pytest.raises(SetupError, match="9 arrivals per second for 60 s are more than 100"):
        arrivals_within("poisson", 60.0, 9.0, 0)
    with pytest.raises(SetupError, match=r"it is 101 \(and 100 at most"):
        draw_arrivals("poisson", 101, 1.0, 0)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate, tmp_path):
    for make in (
        lambda: draw_arrivals("poisson", 5, rate, 0),
        lambda: from_trace(write_trace(tmp_path / "t.csv", 1, 2), 1, rate, 0),
        lambda: time_scale("poisson", rate),
    ):
        with pytest.raises(SetupError, match="rate must be above 0"):
            make()


def test_a_series_of_nothing_is_refused(tmp_path):
    with pytest.raises(SetupError, match="1 or more; it is 0"):
        draw_arrivals("poisson", 0, 1.0, 0)
    with pytest.raises(SetupError, match="1 or more; it is 0"):
        from_trace(write_trace(tmp_path / "t.csv", 1, 2), 0, 1.0, 0)


def test_an_unknown_name_is_answered_with_the_known_ones():
    known = "poisson, azure-conv, azure-code, gamma:CV"
    with pytest.raises(SetupError, match=f"'azure'; choose one of: {known}"):
        draw_arrivals("azure", 5, 1.0, 0)


# Burstiness


def test_a_clockwork_has_no_dispersion():
    every_half_second = range(0, 2_000 * SECOND, SECOND // 2)

    assert measure_burstiness(every_half_second) == {
        "cv": 0.0,
        "index_of_dispersion": {1: 0.0, 10: 0.0, 60: 0.0},
    }


def test_dispersion_is_the_variance_of_counts_over_their_mean_in_whole_windows():
    # 20 windows of a second with 2, 0, 2, 0, ... arrivals: mean 1, variance 1. The last arrivals
    # begin a window that does not end.
    pairs = [at for second in range(0, 20, 2) for at in (second * SECOND, second * SECOND + 1)]

    figures = measure_burstiness([*pairs, *[20 * SECOND] * 9])

    assert figures["index_of_dispersion"] == {1: 1.0, 10: None, 60: None}


def test_windows_stretch_with_time():
    pairs = [at for second in range(0, 41, 2) for at in (second * SECOND, second * SECOND + 1)]

    stretched = measure_burstiness([at * 7 for at in pairs], scale=7.0)

    assert stretched["index_of_dispersion"] == measure_burstiness(pairs)["index_of_dispersion"]


@pytest.mark.parametrize("instants", [[], [0], [0, 5], [3] * 50, list(range(20))])
def test_too_little_data_gives_no_figures(instants):
    nothing = {"cv": None, "index_of_dispersion": {1: None, 10: None, 60: None}}

    assert measure_burstiness(instants) == nothing


# Azure traces


def test_a_trace_is_read_in_microseconds_from_its_first_row(tmp_path):
    path = write_trace(tmp_path / "t.csv", 1.5, 1.5000019, 3)

    assert [row.at_us for row in read_trace(path)] == [0, 1, 1_500_000]
    assert read_trace(path)[0][1:] == (10, 5)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("", "no two instants"),
        ("yesterday,1,2", "t.csv:2: not a row"),
        ("2023-11-16 18:00:00,1", "t.csv:2: not a row"),
        ("2023-11-16 18:00:00,1,é", "t.csv:2: not a row"),
        ("2023-11-16 18:00:00,1,-2", "t.csv:2: .* tokens must be from 0 to 10000000"),
        (f"2023-11-16 18:00:00,{'9' * 400},2", "t.csv:2: .* tokens must be from 0 to 10000000"),
        ("2023-11-16 18:00:02,1,2\n2023-11-16 18:00:01,1,2", "t.csv:3: earlier than the row"),
        ("2023-11-16 18:00:02,1,2\n2023-11-16 18:00:02,1,2", "no two instants"),
    ],
)
def test_a_broken_trace_is_named_with_what_is_wrong(tmp_path, rows, problem):
    (tmp_path / "t.csv").write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}\n")

    with pytest.raises(InvalidFile, match=problem):
        read_trace(tmp_path / "t.csv")


def test_a_table_with_other_columns_is_no_trace(tmp_path):
    (tmp_path / "t.csv").write_text("at,tokens\n2023-11-16 18:00:00,1\n")

    with pytest.raises(InvalidFile, match=r"t\.csv:1: the header is not TIMESTAMP,"):
        read_trace(tmp_path / "t.csv")


def test_a_window_of_a_trace_keeps_its_gaps_in_scale(tmp_path):
    # Five arrivals in 8 s are 0.5 per second; at 2 per second each gap is a quarter.
    path = write_trace(tmp_path / "t.csv", 0, 1, 3, 4, 8)

    windows = {tuple(from_trace(path, 3, 2.0, seed)) for seed in range(30)}

    assert windows == {(0, 250_000, 750_000), (0, 500_000, 750_000), (0, 250_000, 1_250_000)}
    assert from_trace(path, 3, 2.0, seed=4) == from_trace(path, 3, 2.0, seed=4)


def test_more_arrivals_than_the_trace_has_are_refused(tmp_path):
    path = write_trace(tmp_path / "t.csv", 0, 1)

    assert from_trace(path, 2, 1.0, 0) == [0, SECOND]
    with pytest.raises(InvalidFile, match="3 arrivals wanted, the trace has 2"):
        from_trace(path, 3, 1.0, 0)


@pytest.mark.parametrize("name", ["conv", "code"])
def test_the_models_table_holds_the_real_traces_figures(data, name):
    rows = read_trace(data / "azure" / f"AzureLLMInferenceTrace_{name}.csv.gz")
    model = MODELS[f"azure-{name}"]
    figures = measure_burstiness([row.at_us for row in rows])

    assert (len(rows) - 1) * SECOND / rows[-1].at_us == pytest.approx(model.rate_per_s, rel=0.002)
    assert figures["cv"] == pytest.approx(model.cv, rel=0.005)
    assert figures["index_of_dispersion"] == pytest.approx(model.index_of_dispersion, rel=0.005)


def test_recorded_workflows_of_real_agents_are_read_whole(data):
    apps = [call.app for call in read_workflows(data / "agentic_workflows.jsonl.gz")]

    assert (len(apps), len(set(apps))) == (50_977, 4)
