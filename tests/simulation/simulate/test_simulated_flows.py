"""`kairos simulate --flow`: the executor that carries live runs out, in virtual time."""

import json
import sys

import msgspec
import pytest

from kairos import flow
from kairos.simulate.flow_answers import answer, tokens_of
from kairos.simulate.flow_simulation import simulate_flow
from kairos.workflows import FlowFigures, Functions, Generation
from kairos.workflows.compile.json_answers import problem
from tests.support.cli.command import main
from tests.support.simulate.model import usual_pool
from tests.support.workflows.declared import MessageTemplate

WORDS = "growth of revenue against cost of capital in a year of change "
POOL = usual_pool("a40-llama3-8b")
VERDICT = {
    "type": "object",
    "properties": {"verdict": {"enum": ["buy", "sell"]}, "score": {"type": "integer"}},
    "required": ["verdict", "score"],
}


def reports(functions=None):
    f = flow.Flow("reports", max_tokens=40, functions=functions)
    doc = f.input("doc")
    s = f.llm("summarise", "Sum up:\n{{ doc.text }}", doc=doc)
    decide = f.llm("decide", "{{ doc.id }}: {{ s }}", s=s, doc=doc, schema=VERDICT)
    why = f.llm("why", "Why buy {{ doc.id }}?\n{{ s }}", s=s, doc=doc)
    f.output("reason", f.branch("reason", "d.verdict", {"buy": why}, otherwise="-", d=decide))
    return f


def documents(rows, of_each):
    return iter([{"id": n, "text": f"{n // of_each} {WORDS * 8}"} for n in range(rows)])


def run(f, rows, passes=None, pool=POOL):
    return simulate_flow(f.compile(passes), rows, f.functions, pool)


def test_a_flow_is_simulated_to_its_end_with_equal_calls_made_once():
    ran = run(reports(), documents(60, 4))
    figures = ran.figures
    assert (figures.read, figures.written, figures.open, figures.in_flight) == (60, 60, 0, 0)
    assert figures.merged == 45
    assert 15 + 60 < figures.calls < 15 + 60 + 60  # a summary, a verdict, and some reasons
    assert ran.simulated_s > 0


def test_the_same_flow_gives_the_same_figures_and_without_merging_it_takes_longer():
    once, again = (run(reports(), documents(60, 6)) for _ in range(2))
    assert once == again
    without = run(reports(), documents(60, 6), flow.Passes(cse=False))
    assert without.simulated_s > once.simulated_s
    assert without.prompt_tokens_cached > once.prompt_tokens_cached  # engines find it instead


def test_more_instances_are_quicker():
    slow = msgspec.structs.replace(POOL, instances=1)
    small = msgspec.structs.replace(POOL.profile, max_num_seqs=8)
    one, two = (
        run(reports(), documents(60, 1), pool=msgspec.structs.replace(each, profile=small))
        for each in (slow, POOL)
    )
    assert two.simulated_s < 0.7 * one.simulated_s
    assert two.figures == one.figures


SAID = {"type": "object", "properties": {"said": {"const": "x" * 69}}, "required": ["said"]}


def dialogue(role):
    """Two turns; the first is answered with 80 bytes, which the second holds as said by `role`."""
    f = flow.Flow("dialogue", max_tokens=60)
    doc = f.input("doc")
    first = f.llm("first", "{{ doc.text }}", doc=doc, schema=SAID)
    turns = [("user", "{{ doc.text }}"), (role, "{{ first }}"), ("user", "Are you sure?")]
    f.output("text", f.llm("second", turns, doc=doc, first=first))
    return f


def test_a_chat_that_goes_on_with_an_answer_finds_it_in_the_prefix_cache():
    one = msgspec.structs.replace(POOL, instances=1)
    texts = [{"text": f"doc {n}, " + "eightyz " * 100} for n in range(3)]  # 202 tokens each
    alone = flow.Passes(prefill=False)  # what goes ahead finds the same
    anew, on = (run(dialogue(role), iter(texts), alone, pool=one) for role in ("user", "assistant"))
    # What another says after it: the first message, with who speaks and its end.
    assert anew.prompt_tokens_cached == 3 * ((3 + 202 + 1) // 16 * 16)
    # What was answered: that, who answers, and 20 tokens, of which the last was never computed.
    assert on.prompt_tokens_cached == 3 * ((3 + 202 + 1 + 3 + 20 - 1) // 16 * 16)


def split(text):
    return text.split()


def test_groups_maps_and_functions_are_simulated_and_effects_are_not():
    told = []
    functions = Functions()
    functions.pure(split)
    functions.register(told.append, purity="effect", name="tell")
    f = flow.Flow("f", max_tokens=8, functions=functions)
    doc = f.input("doc")
    words = f.call("words", "split", text=doc["text"])
    sent = f.call("sent", "tell", object=doc["text"])
    short = f.map("short", words, lambda item: f.llm("word", "{{ w }}", w=item))
    told_first = f.format("t", "{{ s | join }} {{ n }}", s=short, n=sent)
    groups = f.group("g", "doc.k", told_first, doc=doc)
    f.output("key", groups["key"])
    f.output("text", f.llm("merge", "{{ g['items'] | length }} {{ g.key }}", g=groups))
    rows = [{"k": "ab"[n % 2], "text": f"w{n} w{n + 1}"} for n in range(6)]
    figures = run(f, iter(rows)).figures
    assert (figures.gathered, figures.written, figures.failed) == (6, 2, 0)
    assert figures.calls == 7 + 2  # words that differ, and groups
    assert figures.functions == 12
    assert told == []


def test_made_up_answers_keep_to_their_limits_and_schemas():
    plain = Generation((MessageTemplate("user", "x"),), max_tokens=40)
    lengths = {tokens_of(answer(plain, f"{n:032x}")) for n in range(200)}
    assert min(lengths) >= 10
    assert max(lengths) <= 40
    assert len(lengths) > 20
    assert answer(plain, "a" * 32) == answer(plain, "a" * 32)
    schema = {
        "$ref": "#/$defs/V",
        "$defs": {
            "V": {
                "type": "object",
                "properties": {
                    "n": {"type": "integer", "minimum": 3, "maximum": 5},
                    "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
                    "one": {"anyOf": [{"type": "string"}, {"const": 7}]},
                },
                "required": ["n", "list", "one"],
            }
        },
    }
    bound = msgspec.structs.replace(plain, schema=schema)
    for number in range(50):
        assert problem(schema, json.loads(answer(bound, f"{number:032x}"))) is None


@pytest.fixture
def kairos(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["kairos", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return run


FLOW = """\
flow: short
operators:
  doc: {kind: input}
  ask: {kind: llm, prompt: "{{ doc.text }}", max_tokens: 9}
outputs: {answer: ask}
"""


def test_the_command_says_what_a_flow_would_take(kairos, tmp_path):
    (tmp_path / "f.yaml").write_text(FLOW)
    (tmp_path / "d.jsonl").write_text("".join(f'{{"text": "{n % 3}"}}\n' for n in range(9)))
    words = ("simulate", "--flow", tmp_path / "f.yaml", "--inputs", tmp_path / "d.jsonl")
    code, out, _ = kairos(*words)
    assert code == 0
    assert "rows: 9 read, 9 written" in out
    assert "calls: 3 made" in out
    assert "6 merged with equal ones" in out
    code, out, _ = kairos(*words, "--without", "cse", "--json")
    figures = msgspec.convert(json.loads(out)["figures"], FlowFigures)
    assert (figures.calls, figures.merged) == (9, 0)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), "--inputs FILE"),
        (("--inputs", "d.jsonl", "--rate", "3"), "--flow is run alone"),
        (("--inputs", "d.jsonl", "--policy", "best"), "there is no policy 'best'"),
        (("--inputs", "d.jsonl", "--profile", "none"), "none"),
        (("--inputs", "other.jsonl"), "no column 'text'"),
    ],
)
def test_what_cannot_be_simulated_is_said(kairos, tmp_path, monkeypatch, more, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.yaml").write_text(FLOW)
    (tmp_path / "d.jsonl").write_text('{"text": "x"}\n')
    (tmp_path / "other.jsonl").write_text('{"txt": "x"}\n')
    code, _, _ = kairos("simulate", "--flow", "f.yaml", *more)
    assert said in str(code)
