"""Row H1 of the design: cycles are named, and the four patterns of workflows can be declared."""

import pytest

from kairos import flow
from kairos.workflows.compile.graph import in_order
from kairos.workflows.compile.invalid import InvalidFlow
from kairos.workflows.compile.operators import (
    Declaration,
    Format,
    Operator,
    Output,
    Reference,
)
from kairos.workflows.compile.pipeline import compile_plan
from kairos.workflows.compile.references import needs


def chain(**wants):
    """Operators by what they want."""
    return tuple(
        Operator(
            name=name,
            params=Format("".join(f"{{{{ {each} }}}}" for each in wanted.split())),
            inputs={each: Reference(each) for each in wanted.split()},
        )
        for name, wanted in wants.items()
    )


def test_h1_a_cycle_is_named_in_the_order_in_which_operators_need_each_other():
    with pytest.raises(InvalidFlow, match="a -> c -> b -> a") as raised:
        in_order(chain(x="", a="c x", b="a", c="b"))
    assert raised.value.operator == "a"
    assert "kind loop" in str(raised.value)


def test_an_order_is_kept_where_it_is_one_and_made_where_it_is_not():
    right = chain(x="", a="x", b="a x")
    assert in_order(right) == right
    order = [each.name for each in in_order(chain(b="a x", a="x", x=""))]
    assert order == ["x", "a", "b"]


def test_after_is_a_need_too():
    late = Operator(name="late", params=Format("x"), after=("early",))
    assert needs(late) == ("early",)
    assert [e.name for e in in_order((late, *chain(early="")))] == ["early", "late"]


def test_h1_the_four_patterns_consolidate_into_one_plan():
    f = flow.Flow("patterns")
    doc = f.input("doc")
    first = f.llm("first", "{{ doc.text }}", doc=doc)  # sequential
    then = f.llm("then", "{{ x }}", x=first)
    split = [f.llm(f"split{n}", "{{ n }} {{ x }}", n=n, x=then) for n in range(3)]  # fan out
    merged = f.llm("merge", "{{ v | join }}", v=split)  # fan in
    again = f.loop(  # self-loop
        "again", merged, lambda state: f.llm("once", "{{ s }}", s=state), max_rounds=2
    )
    f.output("text", again)
    plan = f.compile()
    by_name = {each.name: needs(each) for each in plan.declaration.operators}
    assert by_name == {
        "doc": (),
        "first": ("doc",),
        "then": ("first",),
        "split0": ("then",),
        "split1": ("then",),
        "split2": ("then",),
        "merge": ("split0", "split1", "split2"),
        "again": ("merge",),
    }


@pytest.mark.parametrize(
    ("operators", "outputs", "said"),
    [
        (chain(a="", b="a c"), ["b"], "no operator 'c' here"),
        (chain(abc="", b="abd"), ["b"], "did you mean 'abc'?"),
        (chain(a="") * 2, ["a"], "two operators of this name"),
        (chain(**{"a-b": ""}), ["a-b"], "begins with a letter"),
        (chain(item=""), ["item"], "a meaning of its own"),
        (chain(a=""), ["b"], "outputs.out: there is no operator 'b' here; there are a"),
        (chain(**{f"o{n}": "" for n in range(1_001)}), ["o1"], "1000 operators at most"),
        (chain(a=""), [], "the flow has no output"),
        (chain(a="", b=""), ["a", "b"], "a name of its own"),
    ],
)
def test_what_cannot_be_a_flow_is_refused(operators, outputs, said):
    columns = tuple(Output("out", Reference(each)) for each in outputs)
    with pytest.raises(InvalidFlow) as raised:
        compile_plan(Declaration("f", operators, columns))
    assert said in str(raised.value)
