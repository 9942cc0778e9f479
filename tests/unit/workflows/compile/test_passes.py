"""Rows E2, E3 and E4 of the design, as far as they are decided before anything runs."""

import pytest

from kairos import flow
from kairos.workflows import plan_lines
from kairos.workflows.compile.explain import explain_plan
from kairos.workflows.compile.passes.cse import merge_equal
from kairos.workflows.compile.passes.prune import prune
from kairos.workflows.compile.pipeline import compile_plan
from kairos.workflows.compile.prediction import predict_flow


def names(plan):
    return [each.name for each in plan.declaration.operators]


def reports(*, temperature=0.0):
    """Two roles judge one text, by summaries that are written in two ways."""
    f = flow.Flow("reports", temperature=temperature)
    doc, text = f.input("doc"), f.input("text", columns=("lang",))
    one = f.llm("one", "Sum up: {{ doc.body }}", doc=doc)
    two = f.llm("two", "Sum up: {{ b }}", b=text["body"])
    three = f.llm("three", "{{ how }}: {{ b }}", how="Sum up", b=doc["body"])
    f.llm("nobody", "{{ s }}", s=one)
    good = f.llm("good", "Praise {{ s }}", s=one)
    bad = f.llm("bad", "Blame {{ s }}", s=two)
    again = f.llm("again", "Praise {{ x }}", x=three)
    f.output("verdict", f.llm("judge", "{{ v | join }}", v=[good, bad, again]))
    return f


def test_e2_exactly_the_ancestors_of_the_outputs_are_computed():
    plan = reports().compile(flow.Passes(cse=False))
    assert plan.pruned == ("nobody",)
    assert "nobody" not in names(plan)
    assert len(names(plan)) == 9
    assert reports().compile(flow.Passes(prune=False, cse=False)).pruned == ()


def test_e2_a_body_keeps_what_its_result_and_its_end_need():
    f = flow.Flow("f")
    doc = f.input("doc")

    def body(state):
        f.llm("unused", "{{ s }}", s=state)
        end["of"] = f.llm("enough", "Enough? {{ s }}", s=state)
        return f.llm("better", "Better: {{ s }}", s=state)

    end = {}
    text = f.loop("refine", doc["text"], body, max_rounds=3)
    f.output("text", text)
    plan = f.compile()
    assert plan.pruned == ("unused", "enough")
    assert [each.name for each in plan.declaration.operators[1].body] == ["better"]


def test_e3_operators_that_say_the_same_are_computed_once_for_a_row():
    plan = reports().compile()
    assert plan.merged == {"text": "doc", "two": "one", "three": "one", "again": "good"}
    judge = plan.declaration.operators[-1]
    assert [each.operator for each in judge.inputs["v"].each] == ["good", "bad", "good"]


def test_e3_sampled_calls_are_never_merged():
    assert reports(temperature=1.0).compile().merged == {"text": "doc"}


def test_operators_that_differ_in_anything_that_counts_are_not_merged():
    f = flow.Flow("f")
    doc = f.input("doc")
    first = f.format("first", "x")
    ways = [
        {},
        {"max_tokens": 5},
        {"model": "m"},
        {"seed": 3},
        {"stop": ["x"]},
        {"on_error": "skip"},
        {"retries": 5},
        {"after": [first]},
        {"system": "Be brief."},
        {"schema": {"type": "object", "properties": {"a": {}, "b": {}}}},
        {"schema": {"type": "object", "properties": {"b": {}, "a": {}}}},
    ]
    made = [f.llm(f"o{at}", "{{ doc.text }}", doc=doc, **way) for at, way in enumerate(ways)]
    made.append(f.llm("title", "{{ doc.title }}", doc=doc))
    made.append(f.llm("list", "{% for x in doc.text %}{{ x }}{% endfor %}", doc=doc))
    made.append(f.llm("list2", "{% for y in doc.text %}{{ y }}{% endfor %}", doc=doc))
    made.append(f.llm("list3", "{% for x in v %}{{ x }}{% endfor %}", v=doc["text"]))
    made.append(f.llm("list4", "{% for x in v %}{{ x }}{% endfor %}", v=doc["title"]))
    for at, each in enumerate(made):
        f.output(f"c{at}", each)
    assert f.compile().merged == {}


@pytest.mark.parametrize(("temperature", "merged"), [(0.0, {"b": "a"}), (1.0, {})])
def test_equal_loops_are_merged_whatever_their_operators_are_called_unless_they_sample(
    temperature, merged
):
    f = flow.Flow("f", temperature=temperature)
    doc = f.input("doc")
    for name, word in (("a", "Better"), ("b", "Better"), ("c", "Worse")):
        text = f.loop(
            name,
            doc["text"],
            lambda state, name=name, word=word: f.llm(f"{name}1", f"{word}: {{{{ s }}}}", s=state),
            max_rounds=3,
            until="'ok' in state",
        )
        f.output(name, text)
    assert f.compile().merged == merged


def test_passes_are_idempotent():
    once = prune(reports().declaration)
    assert prune(once) == once
    merged, _ = merge_equal(once)
    assert merge_equal(merged) == (merged, {})
    assert compile_plan(merged).declaration == merged


def test_e4_deterministic_calls_are_looked_for_in_the_cache():
    f = flow.Flow("f")
    doc = f.input("doc")
    f.output("a", f.llm("greedy", "{{ doc.text }}", doc=doc))
    f.output("b", f.llm("warm", "{{ doc.text }}", doc=doc, temperature=0.7))
    f.output("c", f.call("parse", len, purity="pure", obj=doc["text"]))
    f.output("d", f.call("send", print, purity="effect", value=doc["text"]))
    assert f.compile().fetches == ("greedy", "parse")
    assert f.compile(flow.Passes(cached=False)).fetches == ()


def test_the_columns_that_a_flow_needs_are_known():
    assert reports().compile().columns == ("body", "lang")
    f = flow.Flow("f")
    doc = f.input("doc")
    f.output("id", doc["id"])
    f.output("note", f.format("note", "{{ doc.note | default('-') }}{{ doc['a'].b }}", doc=doc))
    assert f.compile().columns == ("a", "id")
    assert f.compile().table.whole


def test_e3_merging_across_rows_is_predicted():
    f = flow.Flow("f")
    row = f.input("row")
    context = f.llm("context", "Sum up: {{ row.context }}", row=row, max_tokens=50)
    f.output("a", f.llm("ask", "{{ c }} {{ row.question }}", c=context, row=row, max_tokens=10))
    rows = [{"context": f"c{n % 100}" * 4, "question": f"q{n}", "id": n} for n in range(600)]
    found = predict_flow(f.compile(), rows)
    assert (found.by_operator["context"].calls, found.by_operator["context"].merged) == (100, 500)
    assert (found.by_operator["ask"].calls, found.by_operator["ask"].merged) == (600, 0)
    assert found.by_operator["context"].completion_tokens == 5_000
    # "Sum up: " and a context of 8 or 12 characters, in tokens of four bytes.
    assert found.by_operator["context"].prompt_tokens == sum(
        (8 + len(each["context"])) // 4 for each in rows[:100]
    )
    # An answer of 50 tokens at most, a space and a question.
    assert found.by_operator["ask"].prompt_tokens == sum(
        50 + (1 + len(each["question"])) // 4 for each in rows
    )
    assert found.calls == 700
    assert predict_flow(f.compile(flow.Passes(cse=False)), rows).calls == 1_200


def test_a_plan_says_what_becomes_of_it():
    plan = reports().compile()
    rows = [{"body": "x", "lang": "en"}] * 2
    text = list(plan_lines(explain_plan(plan, predict_flow(plan, rows))))
    assert text[0] == f"flow reports; passes: {', '.join(flow.Passes.__struct_fields__)}"
    assert "left out, since no output needs it: nobody" in text
    assert "merged: two is computed as one" in text
    assert text[-2] == "calls for a row: 4 at most"
    assert text[-1].startswith("for 2 rows: 4 calls and ")
    assert text[-1].endswith("4 calls merged")
