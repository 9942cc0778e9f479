"""Give functions values of their own, whether from rows, constants, defaults, calls or loops."""

import asyncio
from copy import deepcopy

import pytest

from kairos.flow import Flow
from tests.e2e.cli.flow_runs import Runs, answering
from tests.e2e.flows import invoke, kept_in, put

ROWS = [{"tags": ["c", "a"], "of": {"tags": ["x"]}, "n": n} for n in range(3)]
AGAIN = "again: {kind: call, function: use, purity: effect, inputs: {it: %s}, after: [used]}"

# How a value comes to the function, and what else has the same value.
WAYS = {
    "a column": ("", "row.tags", "row.tags"),
    "the row itself": ("", "row", "row.of"),
    "a part of a column": ("", "row.of.tags", "row.of"),
    "a constant": ("", "{value: [a]}", "row.n"),
    "data": ("known: {kind: data, value: [[a], {b: [c]}]}", "known", "known"),
    "a default": (
        (
            "failed: {kind: call, function: fail, purity: pure, on_error: default, default: [[]], "
            "inputs: {it: row.n}}"
        ),
        "failed",
        "failed",
    ),
    "a call that rows share": (
        "made: {kind: call, function: make, purity: pure, inputs: {it: row.tags}}",
        "made",
        "made",
    ),
    "an answer's JSON": ("said: {kind: llm, prompt: p, schema: {type: object}}", "said", "said"),
    "a list of operators": (
        "first: {kind: data, value: [a]}\n  second: {kind: data, value: {b: []}}",
        "[first, second]",
        "second",
    ),
    "a branch": (
        (
            "known: {kind: data, value: [a]}\n"
            "  chosen: {kind: branch, on: row.n, cases: {'0': known}, otherwise: {value: [b]}}"
        ),
        "chosen",
        "chosen",
    ),
    "a state of a loop": (
        (
            "known: {kind: data, value: [a]}\n"
            "  grown: {kind: loop, start: known, max_rounds: 3, result: more, body: {\n"
            "    more: {kind: call, function: use, purity: effect, inputs: {it: state}}}}"
        ),
        "grown",
        "known",
    ),
    "an item of a map": (
        (
            "known: {kind: data, value: [[a], [b]]}\n"
            "  each: {kind: map, over: known, result: more, body: {\n"
            "    more: {kind: call, function: use, purity: effect, inputs: {it: item}}}}"
        ),
        "each",
        "known",
    ),
    "items of a group": (
        "all: {kind: group, by: row.tags | length, value: row}",
        "all",
        "all.items",
    ),
}


def spoil(it):
    """Changes each list and object in place."""
    for each in it if isinstance(it, list) else list(it.values()):
        if isinstance(each, list | dict):
            spoil(each)
    if isinstance(it, list):
        it.append(f"spoilt {len(it)}")
    else:
        it["spoilt"] = len(it)
    return it


def functions_of(functions, use):
    def make(it):
        return [it, {"made": []}]

    def fail(it):
        raise LookupError(it)

    functions.register(use, purity="effect", name="use")
    functions.register(make, purity="pure")
    functions.register(fail, purity="pure")


def careful(it):
    return spoil(deepcopy(it))


async def of_a_coroutine(it):
    await asyncio.sleep(0)
    return spoil(it)


@pytest.fixture
def runs_of(tmp_path, engine):
    def make(name, use):
        runs = Runs(tmp_path / name, answering(engine, lambda _: '{"in": [1], "of": {}}'))
        runs.directory.mkdir(exist_ok=True)
        functions_of(runs.functions, use)
        return runs

    return make


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("use", [spoil, of_a_coroutine])
async def test_a_value_that_a_function_changes_is_its_own(runs_of, way, use):
    before, value, other = WAYS[way]
    flow = f"""
flow: t
operators:
  row: {{kind: input, columns: [tags, of, n]}}
  {before}
  used: {{kind: call, function: use, purity: effect, inputs: {{it: {value}}}}}
  {AGAIN % value}
outputs: {{used: used, again: again, other: {other}}}
"""
    tables = {}
    for name, each in (("spoilt", use), ("clean", careful)):
        runs = runs_of(name, each)
        for turn in ("first", "second"):  # the second has the results of the first
            out = f"{turn}.jsonl"
            record = await runs.run(flow, ROWS, out)
            assert record.figures.get("failed", 0) == 0, runs.out(f"{turn}.errors.jsonl")
            tables[name, turn] = runs.out(out)

    assert len({repr(table) for table in tables.values()}) == 1, tables


async def test_h06_each_function_has_the_row_as_it_was_read(runs_of):
    runs = runs_of("h06", spoil)

    def top(tags):
        tags.sort()
        del tags[2:]
        return tags

    def number(tags):
        return len(tags)

    runs.functions.pure(top)
    runs.functions.pure(number)
    await runs.run(
        """
flow: t
operators:
  row: {kind: input}
  top: {kind: call, function: top, purity: pure, inputs: {tags: row.tags}}
  n: {kind: call, function: number, purity: pure, inputs: {tags: row.tags}, after: [top]}
outputs: {all: row.tags, top: top, n: n}
""",
        [{"tags": ["c", "a", "b"]}],
    )

    assert runs.out() == [{"row": 0, "all": ["c", "a", "b"], "top": ["a", "b"], "n": 3}]


async def test_what_a_function_keeps_and_changes_later_is_given_as_it_was(runs_of):
    runs, kept = runs_of("kept", spoil), []

    def keep(n):
        spoil(kept)
        kept.append(n)
        return kept

    runs.functions.register(keep, purity="sampled")
    flow = """
flow: t
operators:
  row: {kind: input}
  made: {kind: call, function: keep, purity: sampled, inputs: {n: row.n}}
  used: {kind: call, function: use, purity: effect, inputs: {it: made}}
outputs: {made: made, used: used}
"""
    await runs.run(flow, ROWS)

    assert sorted(len(row["made"]) for row in runs.out()) == [2, 4, 6]
    assert all(len(row["used"]) == len(row["made"]) + 1 for row in runs.out())


def test_a_program_may_change_what_it_declared_with():
    flow, known, schema = Flow("t"), {"tags": []}, {"type": "object", "properties": {}}
    row = flow.input("row", columns=["n"])
    flow.output(
        "called",
        flow.call("called", spoil, it=known, on_error="default", default=known, after=[row]),
    )
    flow.output("said", flow.llm("said", "{{ row.n }}", row=row, schema=schema))
    before = flow.compile().declaration
    spoil(known)
    schema["properties"]["more"] = {}

    assert flow.compile().declaration == before
    assert "spoilt" not in repr(before)


async def test_h06_one_clients_output_holds_nothing_of_anothers(kairos, engine, tmp_path):
    (tmp_path / "functions.py").write_text(
        "from kairos.flow import Functions\n"
        "functions = Functions()\n"
        "@functions.pure\n"
        "def look_up(name):\n"
        "    raise LookupError(name)\n"
        "@functions.effect\n"
        "def tag(it, name, more):\n"
        "    it['tags'].append(name)\n"
        "    more.append(name)\n"
        "    return [it, more]\n"
    )
    flow = """
flow: tags
operators:
  row: {kind: input}
  known: {kind: call, function: look_up, purity: pure, inputs: {name: row.name},
          on_error: default, default: {tags: []}}
  tagged: {kind: call, function: tag, inputs: {it: known, name: row.name, more: {value: []}}}
outputs: {tagged: tagged}
"""
    kept = kept_in(tmp_path / "flows", functions=str(tmp_path / "functions.py"))
    served = await kairos(engine.url, flows=kept)
    assert (await put(served, flow, "tags")).status == 200
    for name in ("alice", "bob"):
        told = (await invoke(served, {"name": name}, "tags")).json()
        assert told["outputs"] == {"tagged": [{"tags": [name]}, [name]]}
