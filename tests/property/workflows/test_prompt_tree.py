"""Invariant 4 of the design: a leaf's path is its rendered template, and what two leaves have in
common is what their prompts have."""

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from kairos import flow
from kairos.workflows.compile.prompts import Hole, Speaker, Text, prompts
from kairos.workflows.compile.templates import template
from kairos.workflows.compile.tree import PromptTree, size_bytes
from kairos.workflows.compile.values import as_text, part

PARTS = st.sampled_from(["", "x", "xy", "yx", "é", "{{ row.a }}", "{{ row.b }}", "{{ said }}"])
TEMPLATES = st.lists(st.lists(PARTS, min_size=1, max_size=6).map("".join), min_size=1, max_size=8)
ROLES = st.lists(st.sampled_from(["system", "user"]), min_size=8, max_size=8)
ROWS = st.fixed_dictionaries({"a": st.text(max_size=5), "b": st.integers()})


def declared(sources, roles):
    f = flow.Flow("f")
    row = f.input("row")
    said = f.llm("said", "Say {{ row.a }}", row=row)
    f.output("said", said)
    for at, (source, role) in enumerate(zip(sources, roles, strict=False)):
        inputs = {"row": row, "said": said}
        inputs = {name: each for name, each in inputs.items() if name in source}
        call = f.llm(f"o{at}", [(role, source or "-"), ("user", "x")], inputs=inputs)
        f.output(f"o{at}", call)
    return f.compile(flow.Passes(cse=False)).declaration


def filled(prompt, values):
    """As one text, who speaks between brackets that nothing else has."""
    texts = []
    for piece in prompt:
        match piece:
            case Speaker(role=role):
                texts.append(f"\0{role}\0")
            case Text(text=text):
                texts.append(text)
            case Hole(filled_by=reference):
                texts.append(as_text(part(values[reference.operator], reference.path)))
    return "".join(texts)


@given(TEMPLATES, ROLES, ROWS, st.text(max_size=5))
def test_e5_a_leafs_path_is_its_rendered_template(sources, roles, row, answer):
    declaration = declared(sources, roles)
    by_operator, values = prompts(declaration.operators), {"row": row, "said": answer}
    tree = PromptTree(by_operator)
    for operator in declaration.operators:
        if operator.name not in by_operator:
            continue
        rendered = "".join(
            f"\0{each.role}\0{template(each.template).render(values)}"
            for each in operator.params.messages
        )
        path = [piece for node in tree.path(operator.name) for piece in node.pieces]
        assert filled(path, values) == rendered


@given(
    TEMPLATES,
    ROLES,
    st.dictionaries(st.sampled_from(["row.a", "row.b", "said"]), st.integers(0, 9)),
)
def test_e5_what_two_leaves_share_is_what_their_prompts_begin_with_by_brute_force(
    sources, roles, holes
):
    operators = declared(sources, roles).operators
    by_operator = prompts(operators)
    tree = PromptTree(by_operator)
    for one in by_operator:
        for other in by_operator:
            nodes = common(tree.path(one), tree.path(other))
            shared = sum(size_bytes(piece, holes) for node in nodes for piece in node.pieces)
            units = common(characters(by_operator[one]), characters(by_operator[other]))
            assert shared == sum(size_bytes(unit, holes) for unit in units)


def common(one, other):
    return [a for a, _ in takewhile(lambda both: both[0] == both[1], zip(one, other, strict=False))]


def characters(prompt):
    for piece in prompt:
        yield from map(Text, piece.text) if isinstance(piece, Text) else [piece]
