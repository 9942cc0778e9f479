"""Row E1 of the design: a flow is declared without any I/O, and what is not bound is named."""

import builtins
import socket

import msgspec
import pytest

from kairos import flow
from kairos.workflows.compile.invalid import InvalidFlow
from kairos.workflows.compile.operators import Constant, Reference, References


class Verdict(msgspec.Struct):
    score: int
    why: str = ""


def example():
    f = flow.Flow("reports", model="small", max_tokens=100)
    doc = f.input("doc")
    s = f.llm("summarise", "Summarise:\n{{ doc.text }}", doc=doc, max_tokens=200)
    v = [f.llm(r, "You are a {{ r }} analyst.\n{{ s }}", r=r, s=s) for r in ("bull", "bear")]
    f.output("verdict", f.llm("decide", "{{ v | join }}", v=v, schema=Verdict))
    return f


def test_e1_nothing_is_read_or_written_before_a_flow_is_run(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("I/O")

    monkeypatch.setattr(builtins, "open", refuse)
    monkeypatch.setattr(socket, "socket", refuse)
    plan = example().compile()
    assert plan.columns == ("text",)
    assert plan.outputs == ("verdict",)
    assert plan.models == ("small",)


@pytest.mark.parametrize(
    ("build", "operator", "said"),
    [
        (lambda f, d: f.llm("a", "{{ doc.text }} {{ dok }}", doc=d), "a",
         "operator 'a', prompt: it needs 'dok', which is not bound to anything; bound: doc"),
        (lambda f, d: f.llm("a", "x", system="{{ y }}"), "a", "operator 'a', system: it needs 'y'"),
        (lambda f, d: f.filter("a", d, "d.n > least", d=d), "a", "'a', where: it needs 'least'"),
        (lambda f, d: f.format("a", "{{ x }}", x=d, y=d), "a", "'y' is bound, and nothing"),
        (lambda f, d: f.loop("a", d, lambda s: f.format("b", "{{ s }}", s=s), max_rounds=2,
                             until="stat == 1"), "a", "'a', until: it needs 'stat'"),
    ],
)  # fmt: skip
def test_e1_an_unbound_input_is_refused_and_named(build, operator, said):
    f = flow.Flow("f")
    f.output("x", build(f, f.input("doc")))
    with pytest.raises(InvalidFlow) as raised:
        f.compile()
    assert raised.value.operator == operator
    assert said in str(raised.value)


def test_arguments_are_operands_lists_of_them_or_constants():
    by_name = {each.name: each for each in example().declaration.operators}
    assert by_name["bull"].inputs == {"r": Constant("bull"), "s": Reference("summarise")}
    assert by_name["decide"].inputs == {"v": References((Reference("bull"), Reference("bear")))}
    f = flow.Flow("f")
    assert f.input("doc")["a"][2].reference == Reference("doc", ("a", 2))
    f.format("t", "{{ name }}", inputs={"name": ("x", 1)})
    assert f.declaration.operators[-1].inputs == {"name": Constant(["x", 1])}


def test_what_llm_calls_do_not_say_the_flow_says():
    by_name = {each.name: each for each in example().declaration.operators}
    assert by_name["summarise"].params.max_tokens == 200
    assert by_name["bull"].params.max_tokens == 100
    assert by_name["bull"].params.model == "small"
    assert by_name["bull"].retries == 2


def test_a_schema_comes_from_a_class_with_an_object_at_its_top():
    by_name = {each.name: each for each in example().declaration.operators}
    schema = by_name["decide"].params.schema
    assert schema["type"] == "object"
    assert schema["required"] == ["score"]
    with pytest.raises(InvalidFlow, match="schema"):
        flow.Flow("f").llm("a", "x", schema=3)


@pytest.mark.parametrize(
    ("misuse", "said"),
    [
        (lambda f, a: f"{a}", "it has no text"),
        (lambda f, a: str(a), "it has no text"),
        (lambda f, a: [*a], "use Flow.map"),
        (lambda f, a: 1 if a else 2, "use Flow.branch"),
        (lambda f, a: a[1.5], "a part has a name or a number"),
        (lambda f, a: f.format("b", "{{ x }}", x=[a, 1]), "operands or of constants"),
        (lambda f, a: f.format("b", "{{ x }}", x=object()), "a constant is JSON"),
        (lambda f, a: flow.Flow("g").format("b", "{{ x }}", x=a), "of another flow"),
        (lambda f, a: f.loop("b", a, lambda state: 3, max_rounds=1), "its body returns"),
        (lambda f, a: f.data("b", a), "data is a constant"),
    ],
)
def test_what_is_not_there_yet_cannot_be_used_as_if_it_were(misuse, said):
    f = flow.Flow("f")
    with pytest.raises(InvalidFlow) as raised:
        misuse(f, f.input("doc"))
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"temperature": 3}, "temperature: it is 3, and may be 0 to 2"),
        ({"max_tokens": -1}, "max_tokens: it is -1"),
        ({"top_p": 2}, "top_p"),
        ({"retries": 11}, "retries: it is 11, and may be 0 to 10"),
        ({"stop": [""]}, "stop"),
        ({"model": "m" * 300}, "model"),
        ({"schema": {"type": "x" * 2_000_000}}, "schema: it has"),
        ({"cpus": 0}, "cpus: it is 0, and may be 1 to 1024"),
        ({"cpus": 2, "batched": True}, "takes several calls at once runs where they are gathered"),
    ],
)
def test_what_an_operator_says_of_itself_has_bounds(params, said):
    f = flow.Flow("f")
    if "cpus" in params:
        f.output("x", f.call("x", lambda: 1, purity="pure", **params))
    else:
        f.output("x", f.llm("a", "b", **params))
    with pytest.raises(InvalidFlow) as raised:
        f.compile()
    assert said in str(raised.value)


def test_what_is_made_in_a_body_stays_there():
    f = flow.Flow("f")
    doc, made = f.input("doc"), []
    f.output("a", f.map("all", doc["list"], lambda item: made.append(item) or f.format(
        "one", "{{ x }}", x=item)))  # fmt: skip
    f.output("b", f.format("two", "{{ x }}", x=made[0]))
    with pytest.raises(InvalidFlow, match=r"no operator 'all\.item' here"):
        f.compile()


def test_a_loop_and_a_map_know_their_round_and_their_position():
    f = flow.Flow("f")
    doc = f.input("doc")
    out = f.map(
        "all", doc["list"], lambda item, at: f.format("one", "{{ n }}{{ x }}", n=at, x=item)
    )
    f.output("a", out)
    assert f.declaration.operators[1].body[0].inputs["n"] == Reference("all.index")


def test_what_differs_by_row_and_by_group_does_not_mix():
    f = flow.Flow("f")
    doc = f.input("doc")
    topic = f.llm("topic", "{{ doc.text }}", doc=doc)
    groups = f.group("topics", "t | trim", doc["text"], t=topic)
    f.output("x", f.llm("each", "{{ g['items'] | join }} {{ t }}", g=groups, t=topic))
    with pytest.raises(InvalidFlow, match="once a group, and 'topic' once a row") as raised:
        f.compile()
    assert raised.value.operator == "each"

    f = flow.Flow("f")
    doc = f.input("doc")
    groups = f.group("topics", "doc.topic", doc["text"], doc=doc)
    f.output("key", groups["key"])
    f.output("id", doc["id"])
    with pytest.raises(InvalidFlow, match="a flow gives one table"):
        f.compile()


def test_groups_are_made_of_rows_and_a_flow_has_one():
    f = flow.Flow("f")
    doc = f.input("doc")
    first = f.group("first", "doc.topic", doc["text"], doc=doc)
    f.output("key", f.group("second", "doc.lang", doc["text"], doc=doc)["key"])
    f.output("other", first["key"])
    with pytest.raises(InvalidFlow, match="a flow has one group, and there is 'first' already"):
        f.compile()


def test_an_effect_in_a_body_that_its_result_does_not_need_is_refused():
    f = flow.Flow("f")
    doc = f.input("doc")

    def body(item):
        f.call("send", print, value=item)
        return f.format("one", "{{ i }}", i=item)

    f.output("x", f.map("each", doc["list"], body))
    with pytest.raises(InvalidFlow, match="it would never run") as raised:
        f.compile()
    assert raised.value.operator == "send"


def test_an_effect_that_nothing_needs_is_refused_instead_of_left_out():
    f = flow.Flow("f")
    doc = f.input("doc")
    sent = f.call("send", print, value=doc["text"])
    f.output("id", doc["id"])
    with pytest.raises(InvalidFlow, match="it would never run"):
        f.compile()
    f.output("done", f.format("done", "yes", inputs={}))
    f.output("sent", sent)
    f.compile()
