"""What instances hold of a prompt is the same as columns and as the prefix index says it."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import Instance
from kairos.core.dispatcher import wanted
from kairos.core.dispatcher.prefixes import PrefixIndex
from kairos.core.dispatcher.wanted import PrefixColumns
from tests.support.examples import examples
from tests.support.simulate import build

INSTANCES = 6


class Table:
    """Rows of instances, as `CompiledTable` has them; `i5` never has one."""

    def __init__(self):
        self.rows = {f"i{number}": number for number in range(INSTANCES - 1)}
        self.arranged = 0

    @property
    def count(self):
        return INSTANCES - 1

    def row(self, instance_id):
        return self.rows.get(instance_id, -1)

    def rearrange(self):
        ids = list(self.rows)
        self.rows = dict(zip(ids[1:] + ids[:1], self.rows.values(), strict=True))
        self.arranged += 1

    def column(self, tokens, most):
        """None where nobody holds any."""
        found = [0] * self.count
        for instance_id, number in tokens.items():
            if instance_id in self.rows:
                found[self.rows[instance_id]] = min(number, most)
        return found


def prompt(draw, number):
    """All begin with some of what the longest begins with, and go on in a few ways."""
    shared = draw.randrange(9)
    own = [hash((draw.randrange(3), mark)) for mark in range(draw.randrange(4))]
    marks = (*range(1, shared + 1), *own)
    tokens = draw.choice([16 * len(marks) + 1, 700, 3_000])
    return build.request(f"r{number}", prompt=tokens, prefix=marks, prefix_units=tokens)


def agree(columns, index, table, request):
    found = columns.of(request, (table.arranged, index.left), alone=False)
    # That a stretch is no longer than the prompt is the kernel's to see.
    mosts = request.prompt_tokens, request.prompt_tokens - 1
    told = index.in_use(request), index.match(request)
    for column, tokens, most in zip(found, told, mosts, strict=True):
        assert (column is None) == (not tokens)
        if column is not None:
            assert [min(each, most) for each in column] == table.column(tokens, most)
    assert columns.of(request, (table.arranged, index.left), alone=True)[1] is None


@pytest.mark.interpreted  # sets how many instances are many
@examples(100)
@given(seed=st.integers(0, 2**32), many=st.integers(1, 4))
def test_columns_say_what_the_index_says(seed, many):
    draw, index, table = Random(seed), PrefixIndex(), Table()
    columns = PrefixColumns(index.runs, table)
    for number in range(INSTANCES):
        index.add_instance(Instance(id=f"i{number}", models=(), max_num_seqs=8, kv_tokens=6_000))
    running, is_many, wanted._MANY = [], wanted._MANY, many
    try:
        for number in range(60):
            request, instance_id = prompt(draw, number), f"i{draw.randrange(INSTANCES)}"
            index.begin_use(request, instance_id, at=number)
            running.append((request, instance_id))
            if draw.random() < 0.6:
                ended = running.pop(draw.randrange(len(running)))
                cached = draw.choice([None, 0, 32])
                index.end_use(*ended, draw.randrange(900), cached, at=number)
            if draw.random() < 0.05:
                index.remove_instance(gone := f"i{draw.randrange(INSTANCES)}")
                running = [each for each in running if each[1] != gone]
                index.add_instance(Instance(id=gone, models=(), max_num_seqs=8, kv_tokens=6_000))
            if draw.random() < 0.1:
                table.rearrange()
            for again in range(2):
                agree(columns, index, table, prompt(draw, -2 * number - again))
    finally:
        wanted._MANY = is_many
