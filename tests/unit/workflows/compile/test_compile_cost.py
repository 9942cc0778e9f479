"""A plan takes about as much work as its flow is long, whoever wrote the flow. Work is counted in
calls of Python functions, since clocks differ."""

import gc
import sys

import pytest

from kairos import flow
from kairos.workflows.compile.pipeline import compile_plan


def slots(n):
    f = flow.Flow("slots")
    row = f.input("row")
    first = f.llm("first", "{{ row.q }}", row=row, max_tokens=10)
    f.output("a", f.llm("a", "{{ first }}" + "{{ row.a }}{{ row.b }}" * n, first=first, row=row))
    return f.declaration


def filters(n):
    f = flow.Flow("filters")
    row = f.input("row")
    value = row["x"]
    for number in range(n):
        said = f.format(f"said{number}", f"{{{{ row.y }}}} {number}", row=row)
        value = f.filter(f"kept{number}", value, f"said{number}", **{f"said{number}": said})
    f.output("z", f.llm("z", "{{ value }}", value=value))
    return f.declaration


def calls(n):
    f = flow.Flow("calls")
    row = f.input("row")
    value = row["x"]
    for number in range(n):
        prompt = f"{number} {{{{ row.x }}}} {{{{ value }}}}"
        value = f.llm(f"call{number}", prompt, row=row, value=value)
    f.output("z", value)
    return f.declaration


def one_by_one(n):
    """Each round of the passes frees one, which equals another then."""
    f = flow.Flow("one_by_one")
    value, copies = f.input("row")["x"], []
    for number in range(n):
        prompt = f"{number} {{{{ value }}}}"
        after = copies[-1:]
        copies.append(f.llm(f"copy{number}", prompt, value=value))
        value = f.llm(f"call{number}", prompt, value=value, after=after)
    f.output("z", value)
    f.output("y", copies[-1])
    return f.declaration


def work(declaration):
    count = 0

    def seen(_frame, event, _argument):
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    gc.disable()  # finalizers of what other tests left behind are calls, too
    sys.setprofile(seen)
    try:
        compile_plan(declaration)
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


@pytest.mark.parametrize(
    ("made", "long"), [(slots, 500), (filters, 100), (calls, 100), (one_by_one, 100)]
)
def test_a_flow_twice_as_long_takes_less_than_three_times_the_work(made, long):
    compile_plan(made(2))  # what is imported and compiled once
    half = work(made(long // 2))  # first: of a longer one's templates it would find half cached
    assert work(made(long)) < 3 * half
