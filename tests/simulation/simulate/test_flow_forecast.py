"""What `kairos plan` expects of a flow, beside the simulator."""

from functools import partial

import msgspec
import pytest

from kairos import flow
from kairos.core import SECOND
from kairos.engines import load_profile
from kairos.simulate.flow_client import FlowClient
from kairos.simulate.flow_simulation import simulate_flow
from kairos.simulate.processors import TEOLA, Surroundings
from kairos.workflows import LoadedFlow
from kairos.workflows.compile.passes.prefill import MOST_ROWS
from tests.support.flow_tables import FLOWS, example, rows
from tests.support.simulate.model import usual_pool
from tests.support.workflows.runs import (
    compile_plan,
    forecast_flow,
    open_table,
    sampled_rows,
    simulated_profile,
)

POOL = usual_pool("a40-llama3-8b")


def dialogue():
    """A chat of two turns, which finds its first answer in the cache."""
    f = flow.Flow("dialogue", max_tokens=120)
    row = f.input("row")
    first = f.llm("first", "{{ row.text }}\n{{ row.question }}", row=row)
    asked = ("user", "{{ row.text }}\n{{ row.question }}")
    turns = [asked, ("assistant", "{{ first }}"), ("user", "Are you sure? Say why.")]
    f.output("text", f.llm("second", turns, row=row, first=first))
    return LoadedFlow(f.declaration, f.functions)


def compared(loaded, table, engine="a40-llama3-8b", instances=2, sample=20):
    plan = compile_plan(loaded.declaration)
    pool = msgspec.structs.replace(POOL, profile=load_profile(engine), instances=instances)
    drawn = sampled_rows(open_table(table), sample, 1)
    learnt = simulated_profile(loaded, plan, drawn, POOL)
    simulated = simulate_flow(plan, iter(table), loaded.functions, pool)
    return forecast_flow(plan, learnt, table, pool.profile, instances), simulated


SIX = {name: example(name) for name in FLOWS} | {"dialogue": dialogue()}


@pytest.mark.parametrize(
    ("engine", "instances", "count"),
    [("a40-llama3-8b", 2, 60), ("a40-llama2-13b", 1, 150), ("cpu-tiny", 2, 80)],
)
@pytest.mark.parametrize("name", SIX)
def test_e11_kairos_plan_is_within_15_percent_of_the_simulators_time_over_six_flows(
    name, engine, instances, count
):
    expected, simulated = compared(SIX[name], rows(count), engine, instances)
    assert expected.time_s.mean == pytest.approx(simulated.simulated_s, rel=0.15)
    figures = simulated.figures
    actual = figures.prompt_tokens + figures.completion_tokens
    predicted = expected.prompt_tokens.mean + expected.completion_tokens.mean
    assert predicted == pytest.approx(actual, rel=0.15)
    assert expected.calls == pytest.approx(figures.calls, rel=0.1)
    assert expected.time_s.low <= expected.time_s.mean <= expected.time_s.high
    assert expected.unknown == ()


def test_h8_expected_cached_tokens_are_within_15_percent_where_memory_is_enough():
    """Prompts that share what is before them, and a chat that goes on with what was answered."""
    for name in ("summarise_and_judge.yaml", "dialogue", "debate.py"):
        expected, simulated = compared(SIX[name], rows(80), instances=1)
        cached = simulated.prompt_tokens_cached
        share = cached / (cached + simulated.prompt_tokens_computed)
        assert share > 0.1
        assert expected.cached_share == pytest.approx(share, rel=0.15)


@pytest.mark.parametrize("most", [{"ROWS_RECKONED": 100}, {"CALLS_RECKONED": 300, "_FILLED": 0}])
def test_a_long_table_takes_as_much_longer_as_it_has_rows(monkeypatch, most):
    loaded, table = SIX["summarise_and_judge.yaml"], rows(200)
    whole, _ = compared(loaded, table)
    for name, number in most.items():
        monkeypatch.setattr(f"kairos.workflows.compile.forecast.{name}", number)
    part, _ = compared(loaded, table)
    assert part.rows == whole.rows == 200
    assert part.calls == pytest.approx(whole.calls, rel=0.02)
    assert part.time_s.mean == pytest.approx(whole.time_s.mean, rel=0.1)
    assert part.prompt_tokens.mean == pytest.approx(whole.prompt_tokens.mean, rel=0.1)


def waiting():
    """A long text before another's answer: it is computed while that is written."""
    f = flow.Flow("waiting", max_tokens=64)
    row = f.input("row")
    draft = f.llm("draft", "{{ row.question }}", row=row)
    f.output("text", f.llm("last", "{{ row.text }}\n{{ d }}", row=row, d=draft))
    return LoadedFlow(f.declaration, f.functions)


@pytest.mark.parametrize("count", [1, 2, MOST_ROWS, MOST_ROWS + 1, 12])
def test_e11_prompts_that_begin_early_are_expected_in_time_though_no_forecast_has_them(count):
    long = " ".join(f"w{n}" for n in range(1_500))
    table = [{"question": f"{n}?", "text": f"{n} {long}"} for n in range(count)]
    expected, simulated = compared(waiting(), table)
    assert (simulated.figures.touched > 0) == (count <= MOST_ROWS)
    assert expected.time_s.mean == pytest.approx(simulated.simulated_s, rel=0.2)
    assert expected.calls == 2 * count  # what is computed ahead is none
    assert expected.prompt_tokens.mean == pytest.approx(simulated.figures.prompt_tokens, rel=0.01)


FUNCTIONS = flow.Functions()


@FUNCTIONS.pure
def look_up(text):
    return f"found {text}"


def checking(functions_at):
    """An answer, one to its question, and functions that ask somebody, before or between."""
    f = flow.Flow("checking", max_tokens=40, functions=FUNCTIONS)
    row = f.input("row")
    asked = row["question"]
    if "before" in functions_at:
        asked = f.call("look_up", look_up, text=asked)
    said = f.llm("draft", "{{ asked }}", asked=asked)
    if "between" in functions_at:
        said = f.call("check", look_up, text=said)
    f.output("text", f.llm("last", "{{ row.question }} {{ said }}", row=row, said=said))
    return LoadedFlow(f.declaration, FUNCTIONS)


def surrounded(loaded, count, around):
    """Return what 20 rows teach, a simulation of all rows, and the forecast of it."""
    plan, table = compile_plan(loaded.declaration), rows(count)
    pool = msgspec.structs.replace(POOL, client=partial(FlowClient, around=around))
    learnt = simulated_profile(loaded, plan, sampled_rows(open_table(table), 20, 1), pool)
    simulated = simulate_flow(plan, iter(table), loaded.functions, pool)
    return learnt, simulated, forecast_flow(plan, learnt, table, POOL.profile, 2)


@pytest.mark.parametrize("count", [1, 20, 100])
@pytest.mark.parametrize("seconds", [0.5, 2, 8])
@pytest.mark.parametrize("where", ["before", "between", "before and between"])
def test_what_functions_take_is_learnt_and_expected(where, seconds, count):
    around = Surroundings(function_us=round(seconds * SECOND))
    learnt, simulated, expected = surrounded(checking(where), count, around)
    assert set(learnt.times_us.values()) == {seconds * SECOND}
    assert expected.time_s.mean == pytest.approx(simulated.simulated_s, rel=0.15)
    assert expected.calls == simulated.figures.calls


def answering(kinds):
    """A question that is answered from passages of the row's text."""
    f = flow.Flow("answering", max_tokens=40)
    row = f.input("row")
    passages = f.chunk("passages", row["text"], size=40, overlap=5)
    found = passages
    if "search" in kinds:
        vectors = f.embed("vectors", passages)
        kept = f.ingest("kept", passages, vectors)
        asked = f.embed("asked", row["question"])
        found = f.search("found", asked, collection=kept, top_k=6)
    if "rerank" in kinds:
        found = f.rerank("ranked", row["question"], found, top_k=3)
    prompt = "{{ row.question }} {% for each in found %}{{ each }}{% endfor %}"
    f.output("text", f.llm("answer", prompt, row=row, found=found))
    return LoadedFlow(f.declaration, f.functions)


@pytest.mark.parametrize("count", [1, 20, 100])
@pytest.mark.parametrize("kinds", ["search", "rerank", "search and rerank"])
def test_what_processors_take_is_learnt_and_expected(kinds, count):
    around = Surroundings(processors=TEOLA)
    learnt, simulated, expected = surrounded(answering(kinds), count, around)
    taken = {name for name, each in learnt.operators.items() if each.time_us}
    assert taken >= {"found"} if "search" in kinds else taken == {"ranked"}
    assert expected.calls == simulated.figures.calls
    off = expected.time_s.mean / simulated.simulated_s - 1
    assert abs(off) < (0.15 if count <= 20 else 0.3)  # of 100 rows 20 are learnt from
