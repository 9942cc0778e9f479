"""What prompts of a flow have in common, before any row is known."""

import msgspec

from kairos import flow
from kairos.workflows.compile.explain import explained_prompts, prompt_lines
from kairos.workflows.compile.operators import Reference
from kairos.workflows.compile.prompts import Computed, Hole, Speaker, Text, prompts
from kairos.workflows.compile.tree import PromptTree

USER = Speaker("user")
QUESTION = Hole(Reference("q", ("question",)))


def tree_of(f):
    return PromptTree(prompts(f.compile().declaration.operators))


def shape(node):
    """A node as its pieces, whose prompts end there, and what is behind."""
    return node.pieces, node.operators, [shape(each) for each in node.behind.values()]


def figure_four():
    """Agent 1 answers a question; agent 2 does, and reviews what agent 1 said."""
    f = flow.Flow("figure_4")
    q = f.input("q")
    one = f.llm("one", "You are Agent 1. {{ q.question }} Please answer.", q=q)
    two = f.llm("two", "You are Agent 2. {{ q.question }} Please answer.", q=q)
    three = f.llm(
        "three", "You are Agent 2. {{ q.question }} Please review {{ one }}", q=q, one=one
    )
    f.output("answer", two)
    f.output("review", three)
    return f


def test_e5_the_tree_of_heliums_figure_4():
    root = tree_of(figure_four()).root

    answer, review = Text("answer."), Text("review ")
    assert shape(root)[2] == [
        ((USER, Text("You are Agent ")), [], [
            ((Text("1. "), QUESTION, Text(" Please answer.")), ["one"], []),
            ((Text("2. "), QUESTION, Text(" Please ")), [], [
                ((answer,), ["two"], []),
                ((review, Hole(Reference("one"))), ["three"], []),
            ]),
        ])
    ]  # fmt: skip


def test_e5_texts_part_within_and_an_operator_may_end_where_others_go_on():
    short = (USER, Text("ab"))
    tree = PromptTree({"long": (USER, Text("abcd"), QUESTION), "short": short, "same": short})

    assert shape(tree.root)[2] == [
        ((USER, Text("ab")), ["short", "same"], [((Text("cd"), QUESTION), ["long"], [])])
    ]


def test_formats_data_and_constants_are_part_of_the_text_and_who_speaks_parts_prompts():
    f = flow.Flow("texts", max_tokens=10)
    row = f.input("row")
    rules = f.data("rules", {"first": "Be brief."})
    head = f.format("head", "{{ rules.first }} On {{ row.topic }}:", rules=rules, row=row)
    a = f.llm("a", "{{ head }} {{ kind }}", head=head, kind="pro")
    b = f.llm("b", "Be brief. On {{ row.topic }}: contra", row=row)
    c = f.llm("c", [("system", "Be brief."), ("user", "Go on")])
    for name, each in (("a", a), ("b", b), ("c", c)):
        f.output(name, each)

    found = prompts(f.compile().declaration.operators)
    topic = Hole(Reference("row", ("topic",)))
    assert found["a"] == (USER, Text("Be brief. On "), topic, Text(": pro"))
    tree = PromptTree(found)
    assert tree.path("a")[0] is tree.path("b")[0]
    assert tree.path("c")[0] is not tree.path("a")[0]


def test_what_a_template_computes_equals_only_itself():
    f = flow.Flow("opaque")
    row = f.input("row")
    a = f.llm("a", "X {{ row.text | upper }} a", row=row)
    b = f.llm("b", "X {{ row.text | upper }} b", row=row)
    c = f.llm("c", "X {{ row.text | lower }} c", row=row)
    for name, each in (("a", a), ("b", b), ("c", c)):
        f.output(name, each)

    tree = tree_of(f)
    assert tree.path("a")[0].pieces == (USER, Text("X "))
    assert isinstance(tree.path("a")[1].pieces[0], Computed)
    assert len({tree.path(name)[1] for name in "abc"}) == 3


def test_a_format_that_may_have_a_default_instead_and_one_that_is_too_large_stay_holes():
    f = flow.Flow("formats")
    row = f.input("row")
    text = f.format("f0", "{{ row.a }}{{ row.b }}", row=row)
    whole = f.format("f1", "{{ row.a }}.{{ row.b }}.", row=row)
    for at in range(2, 20):  # 2 ** 19 pieces
        whole = f.format(f"f{at}", "{{ x }}{{ x }}", x=whole)
    f.output("a", f.llm("a", "{{ x }}{{ y }}", x=text, y=whole))

    operators = [
        msgspec.structs.replace(each, on_error="default") if each.name == "f0" else each
        for each in f.compile().declaration.operators
    ]
    found = prompts(operators)["a"]
    assert found[:2] == (USER, Hole(Reference("f0")))
    assert len(found) < 1_000
    assert all(isinstance(each, Hole) for each in found[1:])


def test_the_tree_is_explained_with_what_each_beginning_saves():
    f = flow.Flow("figure_4", max_tokens=20)
    row = f.input("row")
    a = f.llm("a", "twelve bytes{{ row.text }}four", row=row)
    b = f.llm("b", "twelve bytes{{ row.text }}eight by{{ a }}", row=row, a=a)
    f.output("b", b)

    explained = explained_prompts(f.compile().declaration.operators)
    # The text is found by each of the two prompts of each row but the first.
    assert [(each.tokens, each.unknown, each.prompts, each.saves_tokens) for each in explained] == [
        (3, ("{row.text}",), 2, 3 * 2),
        (1, (), 1, 0),
        (2 + 20, (), 1, 0),
    ]
    first, *rest = prompt_lines(explained)
    assert "what is shared saves 6 known tokens a row" in first
    assert rest == [
        "  <user> 'twelve bytes' {row.text}: 3 tokens and {row.text}; in 2 prompts; saves 6",
        "    'four': 1 tokens; -> a",
        "    'eight by' {a}: 22 tokens; -> b",
    ]


def test_a_chain_of_a_thousand_prompts_each_of_which_goes_on_from_the_last_is_no_trouble():
    chain = {f"o{n}": (USER, Text("x" * (n + 1))) for n in range(1_000)}
    tree = PromptTree(chain)

    assert len(tree.path("o999")) == 1_000
    assert [*tree.root.below()] == [*chain]
