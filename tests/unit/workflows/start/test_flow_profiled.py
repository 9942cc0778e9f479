"""What a few rows teach about a flow."""

import msgspec
import pytest

from kairos.core import PLACEMENTS, POLICIES, Interval, InvalidFile, SetupError
from kairos.engines import load_profile
from kairos.workflows import Passes
from kairos.workflows.compile.flow_profile import profiles_by_operator
from kairos.workflows.compile.pipeline import compile_plan
from kairos.workflows.execute.observation import ROWS_KEPT
from kairos.workflows.run.tables import open_table
from kairos.workflows.start.flow_profiled import sampled_rows
from kairos.workflows.start.profile_file import (
    profile_lines,
    profile_path,
    read_profile,
    write_profile,
)
from tests.support.flow_tables import FLOWS, example, rows
from tests.support.simulate.model import PoolOptions, simulate_flow
from tests.support.workflows.declared import read_yaml
from tests.support.workflows.runs import simulated_profile

POOL = PoolOptions(
    instances=1,
    profile=load_profile("a40-llama3-8b"),
    policy=POLICIES["kairos"],
    placement=PLACEMENTS["kairos"],
)


def learnt(name, table, count=20, seed=1):
    loaded = example(name)
    plan = compile_plan(loaded.declaration, Passes())
    sample = sampled_rows(open_table(table), count, seed)
    return loaded, plan, simulated_profile(loaded, plan, sample, POOL)


@pytest.mark.parametrize("name", FLOWS)
def test_e11_20_rows_predict_mean_tokens_within_15_percent(name):
    table, loaded = rows(300), example(name)
    # Nothing merged, so that means are of all rows alike.
    plain = compile_plan(loaded.declaration, Passes(cse=False))
    figures = simulate_flow(plain, iter(table), loaded.functions, POOL).figures
    for seed in range(3):
        _, _, found = learnt(name, table, seed=seed)
        expected = sum(
            each.rows.mean
            * each.times.mean
            * (each.prompt_tokens.mean + each.completion_tokens.mean)
            for each in found.operators.values()
            if each.prompt_tokens is not None
        )
        actual = (figures.prompt_tokens + figures.completion_tokens) / len(table)
        assert expected == pytest.approx(actual, rel=0.15)


def test_of_more_rows_than_are_looked_at_one_by_one_shares_are_the_same():
    table = rows(ROWS_KEPT + 50)
    _, _, found = learnt(FLOWS[0], table, count=len(table))
    assert found.rows == len(table)
    assert max(each.rows.mean for each in found.operators.values()) == 1.0


def test_branches_loops_and_maps_are_learnt_as_shares_of_rows_and_times_in_a_row():
    _, _, found = learnt("classify_and_answer.yaml", rows(200), 60)
    chosen = ("mathematician", "historian", "generalist")
    assert sum(found.operators[name].rows.mean for name in chosen) == pytest.approx(1)
    for name in chosen:
        assert 0 < found.operators[name].rows.low < found.operators[name].rows.high < 0.8
    assert found.operators["field"].rows == Interval(1, 1, 1)

    _, _, found = learnt("debate.py", rows(40))
    assert found.operators["critic"].times == Interval(2, 2, 2)

    table = rows(40)
    _, _, found = learnt("map_reduce.yaml", table, 40)
    paragraphs = sum(len(row["paragraphs"]) for row in table) / len(table)
    assert found.operators["note"].times.mean == pytest.approx(paragraphs)


def test_what_was_learnt_of_an_operator_that_says_something_else_does_not_hold():
    flow = """
flow: two
operators:
  row: {{kind: input}}
  first: {{kind: llm, prompt: "{first} {{{{ row.text }}}}", max_tokens: 9}}
  second: {{kind: llm, prompt: "Then {{{{ row.text }}}}", max_tokens: 9}}
outputs: {{first: first, second: second}}
"""
    before, after = (
        compile_plan(read_yaml(flow.format(first=said)), Passes()) for said in ("Say", "Tell")
    )
    loaded = example("debate.py")
    found = simulated_profile(loaded, before, rows(8), POOL)
    assert set(profiles_by_operator(found, before)) == {"first", "second"}
    assert set(profiles_by_operator(found, after)) == {"second"}


def test_a_profile_is_a_small_file_that_is_read_back_and_checked(tmp_path):
    _, _, found = learnt("debate.py", rows(40))
    path = profile_path(tmp_path / "debate.py")
    write_profile(path, found)
    assert path.name == "debate.profile.json"
    assert read_profile(path) == found
    assert path.stat().st_size < 10_000
    assert "critic: for 100% of rows, 2.0 times each, prompts of" in "\n".join(profile_lines(found))

    write_profile(path, msgspec.structs.replace(found, format=99))
    with pytest.raises(InvalidFile, match="of format 99"):
        read_profile(path)
    path.write_text("[]")
    with pytest.raises(InvalidFile, match="not a flow's profile"):
        read_profile(path)
    with pytest.raises(InvalidFile, match="cannot be read"):
        read_profile(tmp_path / "other.json")


def test_the_rows_are_drawn_by_the_seed_and_stay_in_order():
    table = open_table([{"n": n} for n in range(1000)])
    drawn = [[row["n"] for row in sampled_rows(table, 20, seed)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(each == sorted(set(each)) for each in drawn)
    assert max(drawn[0]) > 500
    assert len(sampled_rows(table, 5000, 1)) == 1000
    with pytest.raises(SetupError, match="no row"):
        sampled_rows(open_table([]), 20, 1)
