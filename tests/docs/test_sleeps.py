"""Check that tests wait for facts, or move the clock (`tests/support/loop_clock.py`).

Few sleep for a fixed time, none says how quick it is, and limits are for what hangs."""

import ast
import functools
import operator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PATIENCE_S = 30  # a limit below it is reached by what is well, on a busy machine

# By file: how many, and why they stay.
LASTING = {
    "acceptance/batch_deployments.py": (1, "a process stays away"),
    "attacks/gateway.py": (2, "memory before and after an attack"),
    "contract/cluster/test_bus.py": (1, "a handler that is slow"),
    "contract/cluster/test_kafka_bus.py": (
        2,
        "a broker is away for longer than; a handler that is slow",
    ),
    "e2e/test_flow_backends.py": (1, "an engine that answers late"),
    "e2e/test_flow_beginnings.py": (1, "pauses in which an engine drops what it holds"),
    "e2e/test_flow_equality.py": (1, "answers come in any order"),
    "e2e/gateway/test_page.py": (1, "something to draw, in a picture for the documentation"),
    "e2e/simulate/test_replay.py": (2, "wording that is slow; parts that come apart"),
    "e2e/gateway/test_tokens.py": (2, "an issuer that is slow, and one that is silent"),
    "e2e/test_vllm_flows.py": (1, "a tool that takes its time"),
    "faults/pace.py": (1, "a client that reads slowly"),
    "faults/test_crowd.py": (1, "work that holds up the loop"),
    "faults/villain.py": (1, "an engine that dies a moment after it began"),
    "kinds/test_08_one_engine_after_another_fails.py": (1, "calls at a steady rate"),
    "soak/chaos.py": (1, "a pause between blows"),
    "support/hanging_transactions.py": (2, "between two tries; nobody says that it has ended"),
    "unit/workflows/ray/test_spread.py": (2, "calls come one by one; a coordinator takes a moment"),
    "unit/cli/test_agents.py": (1, "a task that is cancelled"),
    "unit/host/test_group_commit.py": (1, "rows come one by one"),
}
# Limits that are reached where all is well, by file likewise.
SHORT = {
    "e2e/request/test_disconnect.py": (1, "an engine that nobody reads from is silent"),
    "faults/test_before_vllm.py": (1, "a real engine's answer, of which no more comes"),
    "support/kafka.py": (1, "one that does not end is killed"),
}
_CLOCKS = {"monotonic", "perf_counter", "time", "monotonic_ns", "perf_counter_ns", "time_ns"}
_AT = {"timeout": 0, "wait_for": 1, "wait": 0, "join": 0, "result": 0, "flush": 0}
_LIMITS = {"timeout", "limit_s", "within_s"}
_SIGNS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


_parsed = functools.cache(ast.parse)


def fixed_sleeps(source):
    """Return the lines of sleeps of a literal or named length outside any `while` loop."""
    return [node.lineno for node in _calls_outside_loops(source) if _is_sleep(node)]


@functools.cache
def _calls_outside_loops(source):
    """List the calls that are made outside any `while` loop, which looks for a fact again."""
    found, left = [], [(_parsed(source), False)]
    while left:
        node, looks = left.pop()
        if isinstance(node, ast.While):
            looks = True
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            looks = False
        elif isinstance(node, ast.Call) and not looks:
            found.append(node)
        left += [(each, looks) for each in ast.iter_child_nodes(node)]
    return found[::-1]


def _is_sleep(call):
    module = getattr(getattr(call.func, "value", None), "id", "")
    if _name(call) != "sleep" or module not in ("asyncio", "time") or not call.args:
        return False
    given = call.args[0]
    if isinstance(given, ast.Constant):
        return 0 < given.value < 1_000  # longer: for ever
    names = [each for each in ast.walk(given) if isinstance(each, ast.Name | ast.Attribute)]
    parts = ast.Name | ast.Attribute | ast.BinOp | ast.operator | ast.Constant | ast.expr_context
    return all(isinstance(each, parts) for each in ast.walk(given)) and any(
        (each.attr if isinstance(each, ast.Attribute) else each.id).strip("_").isupper()
        for each in names
    )


def _name(call):
    """Name what is called, without what it is of."""
    return getattr(call.func, "attr", None) or getattr(call.func, "id", "")


def short_limits(source):
    """Return the lines of limits below `PATIENCE_S` outside any `while` loop."""
    tree = _parsed(source)
    constants = _constants(tree)
    found = []
    for made in ast.walk(tree):
        if isinstance(made, ast.FunctionDef | ast.AsyncFunctionDef):
            found += [line for line, each in _limits_of(made, constants) if _is_short(each)]
    for call in _calls_outside_loops(source):
        given = [each.value for each in call.keywords if each.arg in _LIMITS]
        at = _AT.get(_name(call), len(call.args))
        seconds = [_value(each, constants) for each in (*given, *call.args[at : at + 1])]
        found += [call.lineno for each in seconds if _is_short(each)]
    return found


def _limits_of(function, constants):
    """Yield line and value of each limit that a function has where none is given."""
    given = function.args
    by_place = [*given.posonlyargs, *given.args]
    pairs = [
        *zip(reversed(by_place), reversed(given.defaults), strict=False),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    for argument, default in pairs:
        if argument.arg in _LIMITS and default is not None:
            yield argument.lineno, _value(default, constants)


def _is_short(seconds):
    return seconds is not None and 0 < seconds < PATIENCE_S


def quick_claims(source):
    """Return the lines that assert of a real duration that it is below `PATIENCE_S`."""
    tree = _parsed(source)
    constants, durations = _constants(tree), _durations(tree)
    return [
        each.lineno
        for check in ast.walk(tree)
        if isinstance(check, ast.Assert)
        for each in ast.walk(check)
        if isinstance(each, ast.Compare)
        for left, sign, right in zip(
            [each.left, *each.comparators], each.ops, each.comparators, strict=False
        )
        if _says_quick(left, sign, right, constants, durations)
    ]


def _says_quick(left, sign, right, constants, durations):
    if isinstance(sign, ast.Gt | ast.GtE):
        left, right = right, left
    elif not isinstance(sign, ast.Lt | ast.LtE):
        return False
    if not _is_duration(left, durations):
        return False
    most = _value(right, constants)
    return most is not None and most < PATIENCE_S


def _durations(tree):
    """The names of a difference of two readings of a real clock."""
    return {
        name.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_difference(node.value)
        for name in ast.walk(node.targets[0])
        if isinstance(name, ast.Name)
    }


def _is_duration(node, durations):
    named = {getattr(each, "id", None) or getattr(each, "attr", "") for each in ast.walk(node)}
    if _is_difference(node) or named & durations:
        return True
    return bool(named & {"took", "took_s", "elapsed", "elapsed_s", "slowest_s"})


def _is_difference(node):
    return any(
        isinstance(each, ast.BinOp)
        and isinstance(each.op, ast.Sub)
        and any(_reads_clock(inner) for inner in ast.walk(each))
        for each in ast.walk(node)
    )


def _reads_clock(node):
    return isinstance(node, ast.Call) and _name(node) in _CLOCKS


def _constants(tree):
    """Find the numbers that names stand for: the module's own, and those from other modules."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            named = [each for each in node.names if each.name.isupper()]
            known = _constants_of(node.module or "") if named else {}
            found |= {each.asname or each.name: known.get(each.name) for each in named}
        elif isinstance(node, ast.Assign):
            pairs = [(node.targets[0], node.value)]
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(node.targets[0].elts, node.value.elts, strict=False)
            found |= {ast.unparse(name): _value(value, found) for name, value in pairs}
    return found


@functools.cache
def _constants_of(module):
    path = TESTS.parent / (module.replace(".", "/") + ".py")
    return _constants(_parsed(path.read_text())) if path.is_file() else {}


def _value(node, constants):
    """Compute an expression of numbers and of such names; None: it is another."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int | float) else None
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
        sides = _value(node.left, constants), _value(node.right, constants)
        return None if None in sides else _SIGNS[type(node.op)](*sides)
    return None


TAKES = "from kairos.gateway.server.http import GRACE_S\n"
RULES = [
    (fixed_sleeps, "async def f():\n  await asyncio.sleep(0.1)\n  assert x", [2]),
    (fixed_sleeps, "for _ in range(3):\n  time.sleep(0.1)", [2]),
    (fixed_sleeps, "while not x:\n  time.sleep(0.1)", []),
    (fixed_sleeps, "while x:\n  def f():\n    time.sleep(2)", [3]),
    (fixed_sleeps, "asyncio.sleep(0)\nasyncio.sleep(3600)\nasyncio.sleep(some)", []),
    (fixed_sleeps, "time.sleep(SETTLED_S)\nawait asyncio.sleep(3 * fleet.LOOK_S)", [1, 2]),
    (fixed_sleeps, "time.sleep(2 * _SETTLED_S)\ntime.sleep(self.pause_s)", [1]),
    (fixed_sleeps, "time.sleep(random.uniform(0, SAVE_S))\ntime.sleep(min(A_S, b_s))", []),
    (short_limits, "asyncio.timeout(5)", [1]),
    (short_limits, "asyncio.timeout(60)\nasyncio.timeout(0)\nasyncio.timeout(limit_s)", []),
    (short_limits, "asyncio.wait_for(x, 0.5)\nasyncio.wait_for(x, 60)", [1]),
    (short_limits, "asyncio.wait_for(x, timeout=2)", [1]),
    (
        short_limits,
        "f.result(10)\nthread.join(1)\nis_over.wait(2)\nproducer.flush(10)",
        [1, 2, 3, 4],
    ),
    (short_limits, "while not is_over.wait(0.1):\n  pass", []),
    (short_limits, "LIMIT_S = 20\nasyncio.timeout(LIMIT_S)", [2]),
    (short_limits, "A, LIMIT_S = 6, 20 + 1\nawait until(x, limit_s=2 * LIMIT_S)", []),
    (short_limits, "until(x, limit_s=2)", [1]),
    (short_limits, "async def until(x, limit_s=2): pass\ndef g(*, within_s=1): pass", [1, 2]),
    (short_limits, "def until(x, limit_s=60, tries=2, *, timeout): pass", []),
    (short_limits, "' '.join(words)\npath.join(a, b)", []),
    (quick_claims, "assert time.monotonic() - began < 2", [1]),
    (quick_claims, "assert 2 > time.monotonic() - began", [1]),
    (quick_claims, "assert 1 < loop.time() - began <= 5", [1]),
    (quick_claims, "took = time.perf_counter() - began\nassert took < 0.5", [2]),
    (quick_claims, f"{TAKES}assert max(took for _, took in made) < GRACE_S * 2", [2]),
    (quick_claims, f"{TAKES}assert told.slowest_s < GRACE_S / 2", [2]),
    (short_limits, f"{TAKES}asyncio.timeout(GRACE_S)", [2]),
    (quick_claims, "WITHIN_S = 6 + 5\nassert time.monotonic() - began < WITHIN_S - 4", [2]),
    (quick_claims, "assert time.monotonic() - began < LIMIT_S", []),
    (quick_claims, "assert time.monotonic() - began < 60", []),
    (quick_claims, "assert time.monotonic() - began > 2", []),
    (quick_claims, "while x:\n  assert time.monotonic() < until", []),
    (quick_claims, "assert took['kairos'] < took['fcfs']\nassert len(took) == 2", []),
    (quick_claims, "began = time.process_time()\nassert time.process_time() - began < 5", []),
]


@pytest.mark.parametrize(("rule", "source", "lines"), RULES)
def test_what_the_rules_find(rule, source, lines):
    assert rule(source) == lines


@pytest.mark.parametrize(
    ("rule", "most", "what_to_do"),
    [
        (fixed_sleeps, LASTING, "wait for a fact, or move the clock: tests/support/loop_clock.py"),
        (short_limits, SHORT, f"a limit is for what hangs: a minute, {PATIENCE_S} s at least"),
        (quick_claims, {}, "assert what was done and not how soon, or make the other way endless"),
    ],
)
def test_no_test_depends_on_being_quick_beside_those_that_are_allowed(rule, most, what_to_do):
    found = {
        str(path.relative_to(TESTS)): rule(path.read_text()) for path in sorted(TESTS.rglob("*.py"))
    }
    new = {path: lines for path, lines in found.items() if len(lines) > most.get(path, (0,))[0]}
    assert new == {}, what_to_do
    fewer = {path for path, (count, _) in most.items() if len(found.get(path, ())) < count}
    assert fewer == set(), "lower the number in this file"
