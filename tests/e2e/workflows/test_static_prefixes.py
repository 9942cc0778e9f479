"""E9 over real sockets: static beginnings of prompts are asked before slow rows are there."""

import asyncio
import json
import threading
import time

import pytest
from aiohttp import web

from kairos.workflows.declare.yaml_file import read_yaml
from tests.e2e.cli.flow_runs import Runs, answer_to, answering, completion
from tests.support.workflows.naive import Naive

ROLES = tuple(f"You are the {name}. " + f"The {name} is strict. " * 60 for name in ("one", "two"))
FLOW = """
flow: roles
defaults: {max_tokens: 8, on_cut: keep}
operators:
  row: {kind: input}
  first: {kind: llm, system: "ONE", prompt: "{{ row.q }}"}
  last: {kind: llm, system: "TWO", prompt: "{{ row.q }} {{ first }}"}
outputs: {first: first, last: last}
"""


ALONE = {"prefill": False}  # prompts of single rows are not computed ahead


def flow():
    """Whose operators each have a role."""
    return FLOW.replace("ONE", ROLES[0]).replace("TWO", ROLES[1])


class SlowRows(list):
    """Rows of which some take a while where a run reads them; all, if it is not said which."""

    pause_s = 0.6
    slow = None

    def __iter__(self):
        for number, each in enumerate(super().__iter__()):
            is_slow = self.slow is None or number in self.slow
            if is_slow and threading.current_thread() is not threading.main_thread():
                time.sleep(self.pause_s)
            yield each


def is_touch(body):
    return body["max_tokens"] == 1


def naive(rows):
    made = Naive(read_yaml(flow()), lambda messages, _: answer_to({"messages": messages})).run(rows)
    return [{"row": row, **values} for (_, row), values in sorted(made.written.items())]


async def test_static_prefixes_are_asked_while_the_first_row_is_awaited(tmp_path, engine):
    runs = Runs(tmp_path, answering(engine))
    rows = [{"q": "why?"}, {"q": "how?"}]
    record = await runs.run(flow(), SlowRows(rows), passes=ALONE)
    assert record.figures["touched"] == 2
    asked = [json.loads(each.body) for each in engine.calls]
    assert [is_touch(each) for each in asked] == [True, True, *[False] * 4]
    assert {each["messages"][0]["content"] for each in asked[:2]} == set(ROLES)
    assert all(each["continue_final_message"] is True for each in asked[:2])
    assert all(len(each["messages"]) == 1 for each in asked[:2])
    assert runs.out() == naive(rows)


async def test_where_a_touch_fails_nothing_comes_of_it(tmp_path, engine):
    def says(body):
        if is_touch(body):
            return web.json_response({"error": {"message": "not so"}}, status=400)
        return answer_to(body)

    runs = Runs(tmp_path, answering(engine, says))
    record = await runs.run(flow(), SlowRows([{"q": "why?"}]), passes=ALONE)
    assert (record.state, record.figures["touched"]) == ("done", 2)
    assert runs.out() == naive([{"q": "why?"}])


@pytest.mark.parametrize("most", [1, 2])
async def test_touches_are_among_the_calls_that_may_run_at_once(tmp_path, engine, most):
    at_once, most_seen = 0, 0

    async def answer(request):
        nonlocal at_once, most_seen
        at_once += 1
        most_seen = max(most_seen, at_once)
        for _ in range(20):
            await asyncio.sleep(0)
        at_once -= 1
        return completion(answer_to(json.loads(await request.read())))

    engine.answer = answer
    runs = Runs(tmp_path, engine)
    rows = SlowRows([{"q": "why?"}, {"q": "how?"}])
    record = await runs.run(flow(), rows, passes=ALONE, concurrency=most)
    assert record.figures["touched"] == 2
    assert most_seen <= most


# Of a row one operator alone is asked: the choice is of its column `who`.
CHOICE = """
flow: choice
defaults: {max_tokens: 8, on_cut: keep}
operators:
  row: {kind: input}
  rare: {kind: llm, system: "ONE", prompt: "{{ row.q }}"}
  usual: {kind: llm, system: "TWO", prompt: "{{ row.q }}"}
  said: {kind: branch, on: row.who, cases: {rare: rare, usual: usual}}
outputs: {said: said}
"""
USUAL, BLOCK = 34, 32
LONG = " ".join(f"word {number}" for number in range(400))


@pytest.mark.vllm
@pytest.mark.timeout(600)
async def test_e9_static_prefixes_are_found_in_the_second_batch_on_real_vllm(
    tmp_path, engine, vllm
):
    """Both batches begin with the rare operator, whose prompts' beginning has left the memory of
    1,023 blocks by the second."""
    rows = SlowRows(
        [
            {"who": "rare", "q": "why?"},
            *({"who": "usual", "q": f"{number} {LONG}"} for number in range(USUAL)),
            {"who": "rare", "q": "and how?"},
        ]
    )
    rows.pause_s, rows.slow = 5.0, (0, len(rows) - 1)
    found = {}
    for touch in (False, True):
        salt = f"{tmp_path} {touch:d}. "
        asked = CHOICE.replace("ONE", salt + ROLES[0]).replace("TWO", salt + ROLES[1])
        record = await Runs(tmp_path, engine).run(
            asked,
            rows,
            f"{touch}.jsonl",
            engines=(vllm[0],),
            concurrency=1,
            passes=ALONE | {"touch": touch},
        )
        figures = record.figures
        assert (record.state, figures["written"]) == ("done", len(rows))
        assert figures["prompt_tokens"] - figures["cached_tokens"] > 1_023 * BLOCK
        found[touch] = figures["cached_tokens"]
    # With touches each call finds all whole blocks of its beginning. Without, the first of the
    # usual operator and both of the rare one do not, but for what both beginnings have in common.
    each, rest = divmod(found[True], len(rows))
    assert (rest, each % BLOCK) == (0, 0)
    assert found[False] < USUAL * each
