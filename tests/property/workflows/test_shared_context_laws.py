"""Compare what prompts of a row have in common (Halo's lambda) with a program on their texts."""

import re
from itertools import takewhile

import pytest

from experiments.e56_kept_order import drawn_flow
from kairos.workflows import Generation
from kairos.workflows.compile.call_shapes import COLUMN_TOKENS
from kairos.workflows.compile.flow_work import shared_contexts

BYTES = 4  # of a token
HOLE = re.compile(r"\{\{\s*([\w.]+)\s*\}\}")


def rendered(operator, row, numbers, answers):
    """The prompt, each value a text of its own that no other has a letter in common with."""

    def value(found):
        given, _, column = found[1].partition(".")
        source = operator.inputs[given].operator  # equal operators are one by now
        name = f"{source}.{column}"
        length = COLUMN_TOKENS * BYTES if column else answers[source]
        mark = chr(0x4E00 + 2 * numbers.setdefault(name, len(numbers)) + row)
        return mark * length

    turns = (
        f"\0{each.role}\1{HOLE.sub(value, each.template)}" for each in operator.params.messages
    )
    return "".join(turns)


def alike(one, other):
    """How many letters they begin with together."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def naive(operators):
    numbers, found = {}, {}
    llm = [each for each in operators if isinstance(each.params, Generation)]
    answers = {each.name: each.params.max_tokens * BYTES for each in llm}
    first, other = (
        {each.name: rendered(each, row, numbers, answers) for each in llm} for row in (0, 1)
    )
    for name, text in first.items():
        same = alike(text, other[name])
        most = max((alike(text, first[each.name]) for each in llm if each.name != name), default=0)
        if most > same:
            found[name] = (most - same) / len(text)
    return found


def agree(seed):
    operators = drawn_flow(seed, rows=1)[0].compile().declaration.operators
    shares = {name: share for name, (_, share) in shared_contexts(operators).items()}
    expected = naive(operators)
    for name in {*shares, *expected}:
        assert shares.get(name, 0.0) == pytest.approx(expected.get(name, 0.0), abs=0.02), name
    return len(expected)


def test_lambda_of_drawn_flows_is_what_their_texts_have_in_common():
    assert sum(map(agree, range(40))) > 40


@pytest.mark.long
def test_lambda_of_a_thousand_drawn_flows_is_what_their_texts_have_in_common():
    assert sum(map(agree, range(40, 1_040))) > 1_000
