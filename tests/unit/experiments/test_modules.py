"""Applications made of modules: what is run, and what is said of it."""

import pytest
from msgspec.structs import replace

from experiments.e40_modules import Results, Row, cases, figures, measure, section
from experiments.retrieval_runs import (
    ALL,
    CHAIN,
    EXAMPLES,
    MODULES,
    OVERLAPPING,
    PARALLEL,
    SMALL,
    SYSTEMS,
    Run,
    in_modules,
    longest_path_us,
    passes_of,
    run,
)
from kairos.execution.timeline import Activity
from kairos.plan.pipeline import Passes
from kairos.tools.flow_file import load_flow

ADVANCED = Run(app="advanced_rag", system=CHAIN, chunks=16, answer_tokens=10)


def after(app, *, parallel):
    declared = load_flow(EXAMPLES / f"{app}.yaml", EXAMPLES / "functions.py").declaration
    declared = in_modules(declared, MODULES[app], parallel=parallel)
    return {each.name: set(each.after) for each in declared.operators}


def test_in_a_chain_a_module_waits_for_all_of_the_one_before():
    waits = after("advanced_rag", parallel=False)

    assert waits["expanded"] == {"passages", "vectors", "collection"}
    assert waits["asked"] == {"expanded"}
    assert waits["answer"] == waits["first"] == {"best"}
    assert waits["vectors"] == set()


def test_parallel_modules_wait_for_those_that_they_need():
    waits = after("advanced_rag", parallel=True)

    assert waits["expanded"] == set()
    assert waits["found"] == {"passages", "vectors", "collection", "asked"}


def test_every_operator_of_an_application_is_in_one_module():
    for app, modules in MODULES.items():
        listed = [name for module in modules for name in module]
        declared = load_flow(EXAMPLES / f"{app}.yaml", EXAMPLES / "functions.py").declaration
        names = {each.name for each in declared.operators} - {"row"}
        assert len(listed) == len(set(listed))
        assert set(listed) == (names if modules else set()), app


def test_a_pass_alone_is_alone_and_kairos_has_all_of_them():
    for name in OVERLAPPING:
        on = passes_of(name)
        assert [each for each in on.__struct_fields__ if getattr(on, each)] == [name]
    assert not any(getattr(passes_of(CHAIN), each) for each in Passes.__struct_fields__)
    assert passes_of(ALL) == Passes()


@pytest.mark.long
@pytest.mark.parametrize("app", MODULES)
def test_answers_of_every_system_are_those_of_the_chain(app):
    base = Run(app=app, system=CHAIN, chunks=6, answer_tokens=10)
    chain = run(base)

    assert chain.answers[0]["answer"]
    for system in SYSTEMS[1:]:
        assert run(replace(base, system=system)).answers == chain.answers, system


def test_a2_indexing_goes_beside_expansion_where_in_a_chain_nothing_overlaps():
    def spans(system):
        found = {}
        for each in run(replace(ADVANCED, system=system)).activities:
            found.setdefault(each.operator.removesuffix("_part"), []).append(
                (each.begun_us, each.ended_us)
            )
        return {name: (min(b for b, _ in of), max(e for _, e in of)) for name, of in found.items()}

    chain, ours = spans(CHAIN), spans(ALL)
    assert chain["collection"][1] <= chain["expanded"][0]
    assert chain["expanded"][1] <= chain["vector"][0]
    assert ours["expanded"][0] < ours["vectors"][1]


def test_a_chain_takes_about_as_long_as_teola_s_figure_3_says():
    """4.1 s, of an application like that with 48 chunks."""
    assert run(replace(ADVANCED, chunks=48)).latency_s == pytest.approx(4.1, rel=0.15)


def test_the_longest_way_is_through_what_needs_what():
    declared = load_flow(EXAMPLES / "web_search.yaml", EXAMPLES / "functions.py").declaration

    def way(*spans):
        activities = [Activity(0, 0, n, n, "llm", begun, ended) for n, begun, ended in spans]
        return longest_path_us(declared, activities)

    # What a branch chooses comes after what it goes by.
    assert (
        way(("guess", 0, 10), ("judge", 50, 55), ("results", 90, 97), ("informed", 99, 100)) == 23
    )
    assert way(("guess", 0, 10), ("judge", 10, 15)) == 15


def test_a_chain_in_small_batches_takes_longer_by_what_teola_s_figure_4_says():
    small, efficient = (run(replace(ADVANCED, chunks=48, system=each)) for each in (SMALL, CHAIN))
    # 48 passages are embedded in 1.8 s instead of 1.35, and as many ranked in 1.05 instead of 0.6.
    assert small.latency_s - efficient.latency_s == pytest.approx(0.9, abs=0.02)


def test_queries_that_come_one_by_one_are_all_answered():
    found = run(replace(ADVANCED, queries=3, rate_per_s=0.5))
    assert len(found.answers) == 3
    assert found.latency_s > run(ADVANCED).latency_s * 0.9


def rows(**latency_s):
    base = Run(app="naive_rag", system=CHAIN)
    return [
        Row(
            commit="c",
            run=replace(base, system=system, seed=seed, answer_tokens=tokens),
            latency_s=seed * latency_s.get(system, latency_s[CHAIN]),
            path_s=seed * 1.0,
            planning_s=seed * 0.01,
            calls=1,
        )
        for tokens in (10, 20)
        for system in SYSTEMS
        for seed in (1, 2)
    ]


def test_gains_are_over_the_chain_seed_by_seed():
    found = rows(chain=2.0, kairos=1.0)

    results = Results(found)
    assert results.speedup(results.cases[0], PARALLEL).mean == 1.0
    text = section(found)
    assert f"| naive_rag, 48, 10 | 3.00 |{' 1.00 |' * (len(SYSTEMS) - 2)}" in text
    assert "**2.00 [2.00, 2.00]**" in text
    assert [each.value for each in figures(found)] == pytest.approx([2.0, 2.0, 2.0, 2.0, 1.0, 0.01])


def test_cases_have_every_application_one_query_and_many():
    made = list(cases(quick=True))
    assert {each.app for each in made} == set(MODULES)
    assert {each.rate_per_s is None for each in made} == {True, False}
    assert all(each.system == CHAIN for each in cases(quick=False))


def test_a_measured_row_says_what_was_run(monkeypatch):
    monkeypatch.setattr("experiments.e40_modules.cases", lambda quick: [ADVANCED])
    found = list(measure(quick=True))

    assert [each.run.system for each in found] == list(SYSTEMS)
    assert all(each.latency_s > 0 and each.path_s > 0 for each in found)
