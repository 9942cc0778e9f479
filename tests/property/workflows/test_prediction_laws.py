"""A reference that takes every operator of every row by itself predicts the same as the product."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kairos import flow
from kairos.workflows.compile.pipeline import compile_plan
from kairos.workflows.compile.prediction import predict_flow
from tests.property.workflows.test_flows import FLOWS, PASSES
from tests.support.examples import examples
from tests.support.workflows.naive_prediction import predict as naive

WORDS = ["yes", "no", "a b", "", "ä€", None, 1, 1.0, True, ["yes", 2], {"c": "yes"}, {"c": ["x"]}]
# Some rows lack a column; one has a column that nobody asks for.
ROWS = st.lists(
    st.dictionaries(st.sampled_from(["a", "b", "other"]), st.sampled_from(WORDS)), max_size=8
)


@examples(600, gate=60)
@given(FLOWS, ROWS, PASSES)
def test_what_is_predicted_is_what_each_row_adds_by_itself(declaration, rows, passes):
    plan = compile_plan(declaration, passes)
    assert predict_flow(plan, rows) == naive(plan, rows)


PARTS = ["{{ v }}", "{{ v.c }}", "{{ v.c[0] }}", "{% if v %}{{ v }}{% endif %}", "{{ v[1] }} "]


def parted(seed, size):
    """A flow that uses values whole and in part, in lists, formatted, cut, and as constants."""
    pick = Random(seed).choice
    f = flow.Flow("parted")
    row = f.input("row")
    made = [row["a"], row["b"], row["a"]["c"], f.data("data", {"c": ["x", "y"]}), {"c": ["z"]}]
    for number in range(size):
        value = pick([pick(made), pick(made), [pick(made[:-1]), pick(made[:3])]])
        text = f"{pick(PARTS)} {pick(PARTS)}{pick(['', f' of {number}'])}"
        match pick(["llm", "llm", "format", "chunk", "call"]):
            case "llm":
                heat = pick([0.0, 0.0, 1.0])
                value = f.llm(f"o{number}", text, v=value, temperature=heat, max_tokens=number)
            case "format":
                value = f.format(f"o{number}", text, v=value)
            case "chunk":
                value = f.chunk(f"o{number}", value, size=2, overlap=1)
            case "call":
                value = f.call(f"o{number}", split, text=value)
        made.insert(0, value)
        f.output(f"c{number}", value)
    return f.declaration


FUNCTIONS = flow.Functions()


@FUNCTIONS.pure
def split(text):
    return str(text).split()


@examples(600, gate=60)
@given(st.builds(parted, st.integers(0, 10**9), st.integers(1, 8)), ROWS, PASSES)
def test_parts_of_values_count_as_they_stand_in_prompts(declaration, rows, passes):
    plan = compile_plan(declaration, passes)
    assert predict_flow(plan, rows) == naive(plan, rows)
