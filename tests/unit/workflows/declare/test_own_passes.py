"""Row A11 of the design: users' own passes."""

import msgspec
import pytest

from kairos import flow
from kairos.workflows.compile.invalid import InvalidFlow
from kairos.workflows.compile.operators import Output


def changed(declaration, **changes):
    return msgspec.structs.replace(declaration, **changes)


def brief(declaration):
    """Every LLM call has ten tokens at most."""
    operators = tuple(
        changed(each, params=changed(each.params, max_tokens=10)) if each.kind == "llm" else each
        for each in declaration.operators
    )
    return changed(declaration, operators=operators)


def broken(declaration):
    return changed(declaration, operators=declaration.operators[1:])


def nothing(declaration):
    return None


def fails(declaration):
    raise KeyError("x")


def another_column(declaration):
    return changed(declaration, outputs=(Output("other", declaration.outputs[0].value),))


def ask(*passes):
    f = flow.Flow("f", passes=passes)
    row = f.input("row")
    f.output("a", f.llm("ask", "{{ row.q }}", row=row))
    return f


def test_a11_a_users_pass_rewrites_what_was_declared():
    assert ask().compile().declaration.operators[1].params.max_tokens is None
    assert ask(brief).compile().declaration.operators[1].params.max_tokens == 10


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (broken, "as the pass 'broken' made it: .*there is no operator 'row' here"),
        (nothing, "the pass 'nothing' gave no Declaration: NoneType"),
        (fails, "the pass 'fails' failed: 'x'"),
        (another_column, "the pass 'another_column' changed which columns come out: a to other"),
    ],
)
def test_a11_what_a_users_pass_gives_is_checked_as_anything_else(own, said):
    with pytest.raises(InvalidFlow, match=said):
        ask(brief, own).compile()


def test_a11_a_users_pass_sees_only_what_can_be_run():
    f = flow.Flow("f", passes=[fails])
    f.output("a", f.llm("ask", "{{ q }}"))
    with pytest.raises(InvalidFlow, match="operator 'ask'"):
        f.compile()
