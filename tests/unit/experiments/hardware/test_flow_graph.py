"""G1: declared workflows, lowered to the planner's graph."""

import pytest

from experiments.hardware.flow_graph import predicted_lengths, work_graph
from experiments.hardware.passes import decomposed
from experiments.hardware.unrolling import unrolled
from kairos import flow
from kairos.errors import SetupError
from kairos.plan.prediction import predict
from kairos.planner.work_graph import TokenCounts, Work, WorkKind, order

TEXT = TokenCounts(prompt=100, answer=10)


def search(query):
    return query


def reports():
    f = flow.Flow("reports", max_tokens=100)
    doc = f.input("doc")
    s = f.llm("summarise", "Summarise:\n{{ doc.text }}", doc=doc, max_tokens=200)
    v = [f.llm(r, "You are a {{ r }} analyst.\n{{ s }}", r=r, s=s) for r in ("bull", "bear")]
    f.output("verdict", f.llm("decide", "{{ v | join }}", v=v))
    return f.compile()


def test_g1_llm_calls_need_what_the_flow_binds():
    plan = reports()
    lengths = predicted_lengths(predict(plan, [{"text": "word " * 400}]))
    found = work_graph(plan.declaration, lengths)
    assert {node.name: node.kind for node in found.nodes} == dict.fromkeys(
        ("summarise", "bull", "bear", "decide"), WorkKind.LLM
    )
    assert {(edge.source, edge.target) for edge in found.edges} == {
        ("summarise", "bull"),
        ("summarise", "bear"),
        ("bull", "decide"),
        ("bear", "decide"),
    }
    assert found.node("summarise").tokens.prompt == pytest.approx(500, rel=0.05)
    assert found.node("summarise").tokens.answer == 200
    phases = order(decomposed(found, lambda _model: 1.0))
    assert phases.index("summarise.decode") < phases.index("bull.prefill")


def test_g1_a_loop_is_unrolled_to_its_bound():
    f = flow.Flow("refining")
    text = f.input("row")
    draft = f.llm("draft", "{{ row.text }}", row=text)
    better = f.loop(
        "refine",
        draft,
        lambda state: f.llm("improve", "Improve: {{ state }}", state=state),
        max_rounds=3,
    )
    f.output("text", better)
    declaration = f.compile().declaration
    found = unrolled(work_graph(declaration, {"draft": TEXT, "improve": TEXT}, again=0.5))
    runs = {node.name: node.runs for node in found.nodes if node.kind is WorkKind.LLM}
    assert runs == {
        "draft": 1,
        "refine/improve": 1,
        "refine/improve#2": 0.5,
        "refine/improve#3": 0.25,
    }
    names = order(found)
    assert names.index("draft") < names.index("refine/improve") < names.index("refine/improve#2")


def test_g1_a_map_runs_once_for_each_item_and_functions_are_tools():
    f = flow.Flow("answers")
    row = f.input("row")
    queries = f.llm("ask", "Queries for {{ row.q }}", row=row, schema={"type": "array"})
    found = f.map("each", queries, lambda item: f.call("find", search, query=item))
    f.output("answer", f.llm("tell", "{{ found }}", found=found))
    graph = unrolled(
        work_graph(
            f.compile().declaration,
            {"ask": TEXT, "tell": TEXT},
            functions={"search": Work(wait_s=0.5)},
            items=4,
        )
    )
    finding = graph.node("each/find")
    assert (finding.kind, finding.runs, finding.work.wait_s) == (WorkKind.TOOL, 4, 0.5)
    assert order(graph) == ("ask", "each/find", "tell")


def test_a_call_without_lengths_is_refused():
    with pytest.raises(SetupError, match="the LLM call 'summarise' has no lengths"):
        work_graph(reports().declaration, {})
