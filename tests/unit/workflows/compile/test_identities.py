"""Operators that give what they are given are left out of plans; what differs in anything stays."""

import pytest

from kairos import flow
from kairos.workflows import plan_lines
from kairos.workflows.compile.explain import explain_plan
from kairos.workflows.compile.operators import Reference

FUNCTIONS = flow.Functions()


@FUNCTIONS.pure
def length(text):
    return len(str(text))


def made(write):
    """A flow of a row, an answer, and what `write` makes of them, which gives the output."""
    f = flow.Flow("same", functions=FUNCTIONS)
    row = f.input("row")
    said = f.llm("said", "{{ row.q }}", row=row, max_tokens=9)
    f.output("out", write(f, row, said))
    return f.compile()


def to_llm(f, value, text="So: {{ v }}", **how):
    return f.llm("user", text, v=value, **how)


def counted(f, row):
    """Return a format of a column, and what a function makes of its value."""
    copy = f.format("copy", "{{ r.a }}", r=row)
    return copy, f.call("counted", length, text=copy)


GONE = {
    "a format of an answer": (
        lambda f, row, said: f.format("copy", "{{ x }}", x=said),
        Reference("said"),
    ),
    "a format of a column, put into a text": (
        lambda f, row, said: to_llm(f, f.format("copy", "{{ r.a }}", r=row)),
        Reference("row", ("a",)),
    ),
    "a filter that is always true": (
        lambda f, row, said: f.filter("copy", said, "1 < 2"),
        Reference("said"),
    ),
    "a filter of a part, put into a text": (
        lambda f, row, said: to_llm(f, f.filter("copy", row["a"], "true")),
        Reference("row", ("a",)),
    ),
    "a branch that always takes one case": (
        lambda f, row, said: f.branch("copy", "'b'", {"a": row["x"], "b": said}),
        Reference("said"),
    ),
    "a branch that never finds its case": (
        lambda f, row, said: f.branch("copy", "3", {"a": row["x"]}, otherwise=said),
        Reference("said"),
    ),
    "a loop that gives its state": (
        lambda f, row, said: f.loop(
            "copy", said, lambda s: (f.format("none", "<{{ s }}>", s=s), s)[1], max_rounds=3
        ),
        Reference("said"),
    ),
    "one of another": (
        lambda f, row, said: f.format("copy", "{{ y }}", y=f.filter("c", said, "true")),
        Reference("said"),
    ),
    "a format of a column whose value nothing takes that is needed": (
        lambda f, row, said: to_llm(f, counted(f, row)[0]),
        Reference("row", ("a",)),
    ),
    "a format of a column whose value another takes that is not needed without one": (
        lambda f, row, said: to_llm(
            f,
            (c := counted(f, row))[0],
            "{{ v }}{{ b }}",
            b=f.branch("always", "'b'", {"a": c[1], "b": said}),
        ),
        Reference("row", ("a",)),
    ),
}
KEPT = {
    "a format of a column that comes out": lambda f, row, said: f.format("c", "{{ r.a }}", r=row),
    "a format of a column that a function takes": lambda f, row, said: f.call(
        "l", length, text=f.format("c", "{{ r.a }}", r=row)
    ),
    "a format of a column that a condition asks": lambda f, row, said: f.filter(
        "l", said, "x == '1'", x=f.format("c", "{{ r.a }}", r=row)
    ),
    "a format of a column in a list": lambda f, row, said: to_llm(
        f, [f.format("c", "{{ r.a }}", r=row), said], "{{ v | join('-') }}"
    ),
    "a format of a part, for what may fail otherwise": lambda f, row, said: to_llm(
        f, f.format("c", "{{ r.a }}", r=row), on_error="skip"
    ),
    "a format with more than a value": lambda f, row, said: f.format("c", "{{ x }}.", x=said),
    "a format of JSON": lambda f, row, said: f.format(
        "c", "{{ x }}", x=f.llm("j", "{{ s }}", s=said, schema={"type": "object"})
    ),
    "a filter that is never true": lambda f, row, said: f.filter("c", said, "false"),
    "a filter that asks something": lambda f, row, said: f.filter("c", said, "x", x=row["a"]),
    "a filter of a part that comes out": lambda f, row, said: f.filter("c", row["a"], "true"),
    "a loop that may end otherwise": lambda f, row, said: f.loop(
        "c", said, lambda s: f.format("n", "<{{ s }}>", s=s), max_rounds=1
    ),
}


@pytest.mark.parametrize("name", GONE)
def test_what_gives_what_it_is_given_is_left_out(name):
    write, given = GONE[name]
    plan = made(write)
    assert plan.collapsed["copy"] == given
    assert "copy" not in {each.name for each in plan.declaration.operators}
    assert any("copy gives" in line for line in plan_lines(explain_plan(plan)))


@pytest.mark.parametrize("name", KEPT)
def test_what_may_differ_in_anything_stays(name):
    assert made(KEPT[name]).collapsed == {}


def test_the_pass_can_be_switched_off():
    f = flow.Flow("same")
    said = f.llm("said", "{{ row.q }}", row=f.input("row"))
    f.output("out", f.format("copy", "{{ x }}", x=said))
    assert f.compile(flow.Passes(identities=False)).collapsed == {}


def test_what_a_body_gives_stays_within_the_body():
    f = flow.Flow("same")
    row = f.input("row")
    said = f.llm("said", "{{ row.q }}", row=row)
    f.output("out", f.map("m", row["list"], lambda item: f.format("copy", "{{ x }}", x=said)))
    assert f.compile().collapsed == {}
