"""Tests wait for facts or move the clock (`tests/support/loop_clock.py`); few sleep."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]

# By file: how many, and why they stay.
LASTING = {
    "contract/test_bus.py": (1, "a handler that is slow"),
    "contract/test_run_topic.py": (4, "a broker's silence is counted in real time, in a C library"),
    "e2e/test_flow_backends.py": (1, "an engine that answers late"),
    "e2e/test_flow_equality.py": (1, "answers come in any order"),
    "e2e/test_page.py": (1, "something to draw, in a picture for the documentation"),
    "e2e/test_replay.py": (2, "wording that is slow; parts that come apart"),
    "e2e/test_tokens.py": (2, "an issuer that is slow, and one that is silent"),
    "e2e/test_vllm_flows.py": (1, "a tool that takes its time"),
    "faults/pace.py": (1, "a client that reads slowly"),
    "faults/test_crowd.py": (1, "work that holds up the loop"),
    "soak/chaos.py": (1, "a pause between blows"),
    "support/hanging_transactions.py": (1, "between two tries"),
    "unit/cli/test_agents.py": (1, "a task that is cancelled"),
    "unit/live/remote/test_remote_processors.py": (1, "a server that takes a moment"),
}
# To be replaced by a wait for a fact; each needs its service to be seen green.
OWED = {}


def fixed_sleeps(source):
    """Return the lines of sleeps of a literal length outside any `while` loop."""
    found = []

    def visit(node, *, looks):
        if isinstance(node, ast.While):
            looks = True  # between two looks for a fact
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            looks = False
        elif isinstance(node, ast.Call) and not looks and _is_fixed_sleep(node):
            found.append(node.lineno)
        for child in ast.iter_child_nodes(node):
            visit(child, looks=looks)

    visit(ast.parse(source), looks=False)
    return found


def _is_fixed_sleep(call):
    if ast.unparse(call.func) not in ("asyncio.sleep", "time.sleep") or not call.args:
        return False
    given = call.args[0]
    return isinstance(given, ast.Constant) and 0 < given.value < 1_000  # longer: for ever


def test_what_a_fixed_sleep_is():
    assert fixed_sleeps("async def f():\n  await asyncio.sleep(0.1)\n  assert x") == [2]
    assert fixed_sleeps("for _ in range(3):\n  time.sleep(0.1)") == [2]
    assert fixed_sleeps("while not x:\n  time.sleep(0.1)") == []
    assert fixed_sleeps("while x:\n  def f():\n    time.sleep(2)") == [3]
    assert fixed_sleeps("asyncio.sleep(0)\nasyncio.sleep(3600)\nasyncio.sleep(some)") == []


def test_no_test_sleeps_for_a_fixed_time_beside_those_that_are_allowed():
    found = {
        str(path.relative_to(TESTS)): fixed_sleeps(path.read_text())
        for path in sorted(TESTS.rglob("*.py"))
    }
    most = LASTING | OWED
    new = {path: lines for path, lines in found.items() if len(lines) > most.get(path, (0,))[0]}
    assert new == {}, "wait for a fact, or move the clock: tests/support/loop_clock.py"
    fewer = {path for path, (count, _) in most.items() if len(found.get(path, ())) < count}
    assert fewer == set(), "lower the number in this file"
