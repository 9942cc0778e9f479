"""`kairos run` and `kairos runs` as processes, which are killed."""

import asyncio
import json
import random
from collections import Counter

import pytest

from kairos.host.group_commit import GROUP_CHANGES
from kairos.workflows.run.rows import ROW_BYTES
from tests.e2e.cli.flow_runs import (
    answering,
    command,
    completion,
    kairos_command,
    prompt_of,
    read_rows,
    write_rows,
)

FLOW = """
flow: chain
operators:
  row: {kind: input}
  first: {kind: llm, prompt: "first {{ row.text }}"}
  second: {kind: llm, prompt: "second {{ first }}"}
  third: {kind: llm, prompt: "third {{ second }}", retries: 0}
outputs: {first: first, third: third}
"""
SLOTS = 8  # of the engine; twice as many calls are in flight


@pytest.fixture
def place(tmp_path, engine):
    (tmp_path / "flow.yaml").write_text(FLOW)
    write_rows(tmp_path / "rows.jsonl", [{"text": f"text {n}"} for n in range(150)])
    answering(engine, delay_s=0.02)
    return tmp_path


def run_arguments(engine, *more, out="out.jsonl", slots=SLOTS):
    return (
        *("run", "flow.yaml", "--inputs", "rows.jsonl", "--out", out),
        *("--engine", f"{engine.url},max_num_seqs={slots}", *more),
    )


async def listed(place):
    status, said = await kairos_command(place, "runs", "list", "--json")
    assert status == 0
    return json.loads(said)


async def test_a_run_that_is_killed_again_and_again_loses_nothing_and_does_nothing_twice(
    place, engine
):
    seed = random.randrange(10**6)
    draw = random.Random(seed)
    kills, state, name = 0, None, None
    while state != "done":
        arguments = (
            run_arguments(engine, "--no-cache") if name is None else ("runs", "resume", name)
        )
        async with command(place, *arguments) as started:
            ending = asyncio.create_task(started.end())
            if kills < 5:
                before = len(engine.calls)
                await engine.until(lambda n=before: len(engine.calls) > n)
                await asyncio.wait([ending], timeout=draw.uniform(0, 0.6))
                if not ending.done():
                    started.kill()
                    kills += 1
            status, said = await ending
        (found,) = await listed(place)
        name, state = found["id"], found["state"]
        assert state in ("done", "interrupted"), (seed, status, said)

    rows = read_rows(place / "out.jsonl")
    assert [row["row"] for row in rows] == list(range(150)), seed
    again = Counter(prompt_of(call) for call in engine.calls)
    assert len(again) == 450, seed
    twice = sum(again.values()) - len(again)
    assert twice <= kills * (2 * SLOTS + GROUP_CHANGES), (seed, twice)
    status, clean = await kairos_command(place, *run_arguments(engine, out="clean.jsonl"))
    assert (status, read_rows(place / "clean.jsonl")) == (0, rows), clean


async def test_a_run_may_have_more_calls_in_flight_than_files_open_by_default(place, engine):
    most, waiting = 60, 0

    async def answer(_):
        nonlocal waiting
        waiting += 1
        await engine.until(lambda: waiting >= most)
        return completion("said")

    engine.answer = answer
    arguments = run_arguments(engine, slots=most)
    status, said = await kairos_command(place, *arguments, open_files=128)
    assert status == 0, said
    assert len(read_rows(place / "out.jsonl")) == 150


async def test_ctrl_c_leaves_a_run_that_is_resumed(place, engine):
    async with command(place, *run_arguments(engine)) as started:
        await engine.called(40)
        started.interrupt()
        status, said = await started.end()
    (found,) = await listed(place)

    assert status == 130
    assert f"kairos runs resume {found['id']} goes on from here" in said
    assert found["state"] == "stopped"
    done = len(engine.calls)
    status, said = await kairos_command(place, "runs", "resume", found["id"][:8], fresh=True)
    assert status == 0, said
    assert "150 rows are in" in said
    assert len(engine.calls) == 450, "nothing is asked twice"
    assert 40 <= done < 450


async def test_a_second_ctrl_c_leaves_what_is_in_flight(place, engine):
    engine.answer = engine.when_released
    async with command(place, *run_arguments(engine)) as started:
        await engine.called(SLOTS)
        started.interrupt()
        await started.until_it_says("Ctrl-C again leaves them")  # two at once may count as one
        started.interrupt()
        status, said = await started.end()

    assert status == 130
    assert "left at once: kairos runs resume" in said


async def test_a_run_is_shown_and_cancelled(place, engine):
    engine.answer = engine.when_released
    async with command(place, *run_arguments(engine)) as started:
        await engine.called(1)
        (found,) = await listed(place)
        assert found["state"] == "running"
        status, said = await kairos_command(place, "runs", "resume", found["id"])
        assert status == 1
        assert "runs in another process" in said
        async with command(place, "runs", "cancel", found["id"]) as cancelling:
            await started.until_it_says("may finish")
            engine.release(10_000)
            assert await cancelling.end() == (0, f"kairos: {found['id']} is cancelled\n")
        assert (await started.end())[0] == 130
    status, said = await kairos_command(place, "runs", "show", found["id"])
    assert "cancelled" in said
    assert engine.url.removeprefix("http://") in said.replace("\n", "")
    status, said = await kairos_command(place, "runs", "resume", found["id"])
    assert (status, "was cancelled: its results are gone" in said) == (1, True)
    assert not list(place.glob("kairos/runs/*/journal*"))
    status, said = await kairos_command(place, "runs", "cancel", found["id"])
    assert (status, "is cancelled already: nothing was changed" in said) == (0, True)


async def test_a_run_that_is_done_is_not_cancelled(place, engine):
    write_rows(place / "rows.jsonl", [{"text": "one"}, {"text": "x" * ROW_BYTES}])
    assert (await kairos_command(place, *run_arguments(engine)))[0] == 3
    (found,) = await listed(place)
    status, said = await kairos_command(place, "runs", "cancel", found["id"])

    assert (status, said) == (0, f"kairos: {found['id']} is done already: nothing was changed\n")
    assert await listed(place) == [found]
    assert (await kairos_command(place, "runs", "resume", found["id"]))[0] == 3


async def test_rows_that_failed_have_a_table_and_the_exit_status_is_3(place, engine):
    rows = [{"text": "one"}, {"text": "x" * ROW_BYTES}, {"text": "two"}]
    write_rows(place / "rows.jsonl", rows)
    status, said = await kairos_command(place, *run_arguments(engine), fresh=True)

    assert status == 3
    assert "1 rows failed" in said
    assert [row["row"] for row in read_rows(place / "out.jsonl")] == [0, 2]
    assert [row["row"] for row in read_rows(place / "out.errors.jsonl")] == [1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"flow.yaml": FLOW.replace("kind: llm", "kind: llmm")}, "flow.yaml:5: operator 'first'"),
        ({"flow.yaml": FLOW.replace("{{ row.text }}", "{{ second }}")}, "first -> second"),
        ({"flow.yaml": FLOW.replace("row.text", "raw.text")}, "flow.yaml:5: "),
        ({"flow.yaml": FLOW[:-40] + "["}, "flow.yaml:"),
        ({"rows.jsonl": '{"txt": "misspelt"}'}, "no column 'text', which the flow needs"),
        ({"out.jsonl": ""}, "out.jsonl exists: name another --out"),
    ],
)
async def test_what_is_wrong_is_told_before_anything_is_spent(place, engine, change, says):
    for name, content in change.items():
        (place / name).write_text(content)
    status, said = await kairos_command(place, *run_arguments(engine))

    assert status == 1
    assert says in said
    assert "Traceback" not in said
    assert engine.calls == []
    assert await listed(place) == []


RESULTS, RAY = "--results postgresql://", "--on ray://HEAD:PORT"


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (("run", "--bus", "kafka://k:1"), RESULTS),
        (("run", "--config", "k.toml"), RESULTS),
        (("run", "--values", "shared"), RESULTS),
        (("runs", "resume", "chain-1", "--bus", "kafka://k:1"), RESULTS),
        (("runs", "resume", "chain-1", "--config=k.toml"), RESULTS),
        (("runs", "resume", "chain-1", "--values", "shared"), RESULTS),
        (("runs", "resume", "chain-1", "--stand-by"), RESULTS),
        (("runs", "cancel", "chain-1", "--bus", "kafka://k:1"), RESULTS),
        (("process", "--embedder", "http://e:1"), RAY),
        (("run", "--processor", "http://p:1"), RAY),
        (("runs", "resume", "chain-1", "--processor=http://p:1"), RAY),
        (("profile", "chain.yaml", "--processor", "http://p:1"), RAY),
        (("run", "--gantt", "run.svg"), "--perfetto"),
    ],
)
async def test_what_there_was_is_refused_with_what_to_use_instead(place, engine, words, instead):
    arguments = run_arguments(engine, *words[1:]) if words[0] == "run" else words
    status, said = await kairos_command(place, *arguments)
    assert (status, instead in said, "any more" in said) == (1, True, True)
    assert engine.calls == []
