"""Fail a row alone for any exception or value of its function, and for any text of its answer."""

import asyncio

import numpy as np
import pytest

from kairos.workflows.declare.python_file import SetupError, load_functions
from tests.e2e.cli.flow_runs import answering
from tests.e2e.flows import invoke, kept_in, put

FLOW = """
flow: t
operators:
  row: {kind: input}
  made: {kind: call, function: make, purity: pure, inputs: {n: row.n}}
outputs: {n: row.n, made: made}
"""
ROWS = [{"n": n} for n in range(4)]


class Silent(BaseException):
    def __str__(self):
        raise SystemExit(7)


class Nameless:
    def __repr__(self):
        raise RuntimeError("no")


def cyclic():
    made = {}
    made["self"] = [made]
    return made


def deep():
    made = []
    for _ in range(100_000):
        made = [made]
    return made


RAISED = {
    "stop iteration": (StopIteration(), "StopIteration"),
    "stop async iteration": (StopAsyncIteration("x"), "StopAsyncIteration: x"),
    "cancelled": (asyncio.CancelledError("mine"), "CancelledError: mine"),
    "exit": (SystemExit(3), "SystemExit: 3"),
    "interrupt": (KeyboardInterrupt(), "KeyboardInterrupt"),
    "generator exit": (GeneratorExit(), "GeneratorExit"),
    "timeout": (TimeoutError("slow"), "TimeoutError: slow"),
    "no words": (Silent(), "Silent"),
    "half a pair": (ValueError("\ud800"), "ValueError: \\ud800"),
    "group": (BaseExceptionGroup("all", [SystemExit(1)]), "BaseExceptionGroup: all (1 sub-exc"),
    "recursion": (RecursionError("deep"), "RecursionError: deep"),
    "memory": (MemoryError(), "MemoryError"),
}
GIVEN = {
    "half a pair": (lambda: "\ud800", "half of a surrogate pair, '\\ud800'"),
    "half a pair as a key": (lambda: {"\udfff": 1}, "half of a surrogate pair"),
    "cyclic": (cyclic, "contains itself"),
    "deep": (deep, "nested too deep"),
    "an object": (object, "there is a object"),
    "a generator": (lambda: (n for n in "ab"), "there is a generator"),
    "a coroutine's function": (lambda: asyncio.sleep, "there is a function"),
    "no repr": (Nameless, "there is a Nameless"),
    "keys that are no texts": (lambda: {(1, 2): 3}, "there is a tuple"),
}
TAKEN = {
    "numpy's integer": (lambda: np.int64(3), 3),
    "numpy's number": (lambda: {"a": np.float32(0.5)}, {"a": 0.5}),
    "numpy's array": (lambda: np.eye(2), [[1.0, 0.0], [0.0, 1.0]]),
    "numpy's truth": (lambda: [np.bool_(True)], [True]),
    "not a number": (lambda: [float("nan"), float("inf")], [None, None]),
    "a tuple and a set": (lambda: ((1,), {2}), [[1], [2]]),
    "keys that are numbers": (lambda: {1: 2}, {"1": 2}),
    "a large number": (lambda: 2**70, 2**70),
}


def raising(error):
    def make(n):
        if n == 1:
            raise error
        return n

    return make


def giving(value_of):
    return lambda n: value_of() if n == 1 else n


def as_coroutine(function):
    async def make(n):
        await asyncio.sleep(0)
        return function(n)

    return make


def as_a_function_of_one(function):
    """Return a plain function that gives a coroutine."""
    later = as_coroutine(function)

    def make(n):
        return later(n)

    return make


FORMS = {"function": lambda each: each, "coroutine": as_coroutine, "both": as_a_function_of_one}


async def row_1_fails(runs, function, says):
    runs.functions.register(function, purity="pure", name="make")
    async with asyncio.timeout(60):
        record = await runs.run(FLOW, ROWS)

    assert (record.state, record.figures["written"]) == ("done", 3)
    assert [row["made"] for row in runs.out()] == [0, 2, 3]
    (error,) = runs.out("out.errors.jsonl")
    assert (error["row"], error["operator"]) == (1, "made")
    assert says in error["error"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", RAISED)
async def test_h01_a_row_whose_function_raises_fails_alone(runs, case, form):
    error, says = RAISED[case]
    if form != "function" and isinstance(error, StopIteration):
        says = "RuntimeError: coroutine raised StopIteration"  # Python's own words
    await row_1_fails(runs, FORMS[form](raising(error)), says)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", GIVEN)
async def test_a_row_whose_function_gives_no_json_fails_alone(runs, case, form):
    value_of, says = GIVEN[case]
    await row_1_fails(runs, FORMS[form](giving(value_of)), says)


@pytest.mark.parametrize("case", TAKEN)
async def test_what_has_a_like_in_json_is_that(runs, case):
    value_of, expected = TAKEN[case]
    runs.functions.register(giving(value_of), purity="pure", name="make")
    await runs.run(FLOW, ROWS)

    assert [row["made"] for row in runs.out()] == [0, expected, 2, 3]


@pytest.mark.parametrize("case", [*GIVEN, *TAKEN])
async def test_a_row_that_a_program_holds_fails_alone_or_is_json(runs, case):
    value_of, _ = (GIVEN | TAKEN)[case]
    flow = "flow: t\noperators: {row: {kind: input, columns: [n]}}\noutputs: {n: row.n}"
    rows = [{"n": value_of() if n == 1 else n} for n in range(4)]
    record = await runs.run(flow, rows)

    assert record.state == "done"
    told = {row["row"]: row["n"] for row in runs.out()}
    if case in TAKEN:
        assert told == {0: 0, 1: TAKEN[case][1], 2: 2, 3: 3}
    else:
        assert told == {0: 0, 2: 2, 3: 3}
        (error,) = runs.out("out.errors.jsonl")
        assert error["row"] == 1
        assert GIVEN[case][1] in error["error"]


async def test_an_answer_nested_as_deep_as_json_goes_fails_its_row_alone(runs):
    flow = """
flow: t
operators:
  row: {kind: input}
  said:
    kind: llm
    prompt: "{{ row.n }}"
    schema: {$ref: "#/$defs/list", $defs: {list: {type: array, items: {$ref: "#/$defs/list"}}}}
outputs: {said: said}
"""
    for depth in (900, 5_000):
        nested = "[" * depth + "]" * depth
        answering(runs.engine, lambda body, nested=nested: nested if "1" in str(body) else "[]")
        record = await runs.run(flow, ROWS, f"{depth}.jsonl", uses_cache=False)
        assert record.figures["written"] >= 3


async def test_a_function_that_raises_anything_fails_one_invocation_and_no_other(
    kairos, engine, tmp_path
):
    raised = ["StopIteration", "KeyboardInterrupt", "SystemExit", "GeneratorExit", "BaseException"]
    (tmp_path / "functions.py").write_text(
        "import asyncio, builtins\n"
        "from kairos.flow import Functions\n"
        "functions = Functions()\n"
        "@functions.pure\n"
        "def make(n):\n"
        "    raise getattr(builtins, n, asyncio.CancelledError)('mine')\n"
        "@functions.pure\n"
        "async def later(n):\n"
        "    make(n)\n"
    )
    kept = kept_in(tmp_path / "flows", functions=str(tmp_path / "functions.py"))
    served = await kairos(engine.url, flows=kept)
    for name in ("make", "later"):
        assert (
            await put(served, FLOW.replace("function: make", f"function: {name}"), "t")
        ).status == 200
        for each in [*raised, "CancelledError"]:
            told = await invoke(served, {"n": each}, "t")
            assert told.status == 422, told.body
            assert f"{each}" in told.error()["message"]
    assert (await served.chat()).status == 200


@pytest.mark.parametrize("line", ["import sys; sys.exit(0)", "raise BaseException('mine')", "1/0"])
def test_a_file_of_functions_that_ends_the_process_is_named(tmp_path, line):
    path = tmp_path / "functions.py"
    path.write_text(line)
    with pytest.raises(SetupError, match=r"functions\.py cannot be run: "):
        load_functions(path)
