"""Row H1 of the design: the same operators in YAML; errors name line, operator, what is right."""

import pytest

from kairos import flow
from kairos.core import InvalidFile
from kairos.workflows.compile.operators import Branch, Constant, Reference, References
from kairos.workflows.compile.pipeline import compile_plan
from kairos.workflows.declare.yaml_file import read_yaml

FLOW = """\
flow: reports
defaults: {model: small, max_tokens: 50}
operators:
  doc: {kind: input}
  summarise:
    kind: llm
    prompt: |
      Summarise:
      {{ doc.text }}
    max_tokens: 200
  route:
    kind: branch
    on: summarise | trim
    cases:
      yes: good
      no: [bad, good]
    otherwise: {value: none}
  good: {kind: llm, system: Be brief., prompt: "A {{ s }}", inputs: {s: summarise}}
  bad: {kind: format, template: "B {{ summarise }}"}
  parts: {kind: call, function: split, purity: pure, inputs: {text: doc.text}}
  each:
    kind: map
    over: parts
    body:
      refine:
        kind: loop
        start: item
        body:
          better: {kind: llm, prompt: "{{ state }} of {{ item }} at {{ index }}"}
        result: better
        until: "'ok' in state and round > 1 and item"
        max_rounds: 3
    result: refine
  long: {kind: filter, of: summarise, where: summarise | length > 10}
outputs:
  verdict: route
  id: doc.id
  all: each
  long: long
"""


def in_python():
    f = flow.Flow("reports", model="small", max_tokens=50)
    doc = f.input("doc")
    s = f.llm("summarise", "Summarise:\n{{ doc.text }}\n", doc=doc, max_tokens=200)
    good = f.llm("good", "A {{ s }}", system="Be brief.", s=s)
    bad = f.format("bad", "B {{ summarise }}", summarise=s)
    route = f.branch(
        "route",
        "summarise | trim",
        {"yes": good, "no": [bad, good]},
        otherwise="none",
        summarise=s,
    )
    f.functions.register(str.split, purity="pure", name="split")
    parts = f.call("parts", "split", text=doc["text"])

    def body(item, index):
        return f.loop(
            "refine",
            item,
            lambda state: f.llm(
                "better",
                "{{ state }} of {{ item }} at {{ index }}",
                inputs={"index": index, "item": item, "state": state},
            ),
            until="'ok' in state and round > 1 and item",
            item=item,
            max_rounds=3,
        )

    each = f.map("each", parts, body)
    long = f.filter("long", s, "summarise | length > 10", summarise=s)
    for column, value in (("verdict", route), ("id", doc["id"]), ("all", each), ("long", long)):
        f.output(column, value)
    return f.compile()


def test_a_file_declares_the_same_flow_as_python():
    read, made = compile_plan(read_yaml(FLOW)), in_python()
    by_name = [{each.name: each for each in plan.declaration.operators} for plan in (read, made)]
    assert by_name[0] == by_name[1]
    assert read.declaration.outputs == made.declaration.outputs
    assert read.table == made.table


def test_keys_are_texts_as_they_are_written():
    (route,) = (e for e in read_yaml(FLOW).operators if isinstance(e.params, Branch))
    assert route.params.cases == {
        "yes": Reference("good"),
        "no": References((Reference("bad"), Reference("good"))),
    }
    assert route.params.otherwise == Constant("none")


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        (
            "doc.text }}",
            "dok.text }}",
            9,
            "prompt: it needs 'dok', and there is no operator of this name; did you mean 'doc'?",
        ),
        (
            "where: summarise |",
            "where: summary and zzz or summarise |",
            34,
            "did you mean 'summarise'?",
        ),
        ("kind: branch", "kind: brunch", 12, "no kind 'brunch'; did you mean 'branch'?"),
        ("kind: branch", "kind: sql", 12, "kind 'sql' is not here yet; there are input"),
        ("kind: branch", "kind: output", 12, "stands under `outputs:`"),
        ("    kind: branch\n", "", 11, "operator 'route' has no kind"),
        ("max_tokens: 200", "max_token: 200", 10, "did you mean 'max_tokens'?"),
        ("max_tokens: 200", "max_tokens: -3", 10, "may be 1 to"),
        ("max_tokens: 200", "max_tokens: lots", 10, "Expected int | null, got str"),
        ("verdict: route", "verdict: rout", 36, "no operator 'rout' here; did you mean 'route'?"),
        ("{{ doc.text }}", "{{ doc.text", 9, "operator 'summarise', prompt: unexpected end"),
        ("over: parts", "over: better", 21, "operator 'each': there is no operator 'better' here"),
        ("over: parts", "over: each", 21, "a circle: each -> each"),
        ("{{ summarise }}", "{{ route }}", 11, "a circle: route -> bad -> route"),
        ("yes: good", "yes: [good", 16, "it is not YAML"),
        ("yes: good", "yes: good\n      yes: bad", 16, "'yes' is there twice"),
        ("trim", "strim", 13, "operator 'route', on: no filter 'strim'; there are"),
        ("{value: none}", "3", 17, "it is OPERATOR or OPERATOR.FIELD"),
        ("outputs:", "output:", 35, "the flow has no 'output'; did you mean 'outputs'?"),
        ("purity: pure", "purity: pur", 20, "operator 'parts', purity: Invalid enum value"),
        ("parts: {kind: call,", "parts: {kind: call, x: 1,", 20, "operator 'parts' has no 'x'"),
        ("'ok' in state", "'ok' on state", 31, "until: `'ok' on state"),
        ("        max_rounds: 3\n", "", 25, "operator 'refine' needs 'max_rounds'"),
        ("model: small", "modell: small", 2, "did you mean 'model'?"),
        ("template:", "prompt:", 19, "operator 'bad' has no 'prompt'"),
        ('prompt: "A {{ s }}", ', "", 18, "either a `prompt` or `messages`"),
        ("flow: reports", "flow: [reports]", 1, "the flow, flow: Expected str"),
    ],
)
def test_h1_an_error_names_the_line_the_operator_and_what_would_be_right(old, new, line, said):
    assert FLOW.count(old) >= 1
    with pytest.raises(InvalidFile) as raised:
        compile_plan(read_yaml(FLOW.replace(old, new), "my.yaml"))
    assert str(raised.value).startswith(f"my.yaml:{line}: "), str(raised.value)
    assert said in str(raised.value)


def nested(text):
    return f"flow: f\noperators:\n  a: {{kind: data, value: {text}}}\noutputs: {{a: a}}\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("NO", "NO"),
        ("2024-05-01", "2024-05-01"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("1:30", "1:30"),
        ("true", True),
        ("~", None),
        ("-12", -12),
        ("1.5e3", 1500.0),
        ("007", 7.0),
        ("'12'", "12"),
        ("[1, {a: null}]", [1, {"a": None}]),
        ("!!python/object/apply:os.system [ls]", ["ls"]),
    ],
)
def test_values_are_those_of_json(text, value):
    assert read_yaml(nested(text)).operators[0].params.value == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("[" * 100_000, "nested over 100 deep"),
        ("a: &a [*a]", "nested over"),
        ("a: [" + "x, " * 200_000 + "]", "over 100000 values"),
        ("x" * 2_000_000, "longer than"),
        ("\x00", "it is not YAML"),
        ("- a", "the flow is a mapping"),
        ("? [a]\n: b", "a key is a text"),
        ("a: &a [" + "x, " * 99 + "]\n" + "".join(
            f"{b}: &{b} [" + f"*{a}, " * 99 + "]\n" for a, b in zip("abc", "bcd", strict=True)
        ), "over 100000 values"),
        (nested("[" * 90 + "]" * 90).replace("kind: data", "kind: data") + "---\na: b", "not YAML"),
    ],
)  # fmt: skip
def test_a_file_from_anyone_is_bounded(text, said):
    with pytest.raises(InvalidFile) as raised:
        read_yaml(text)
    assert said in str(raised.value)
