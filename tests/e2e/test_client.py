"""`kairos_client` in programs of their own, in front of a whole Kairos."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from kairos.core import Arrived, WorkflowEnded
from kairos.host import start_child
from tests.e2e.batch_files import key

CLIENT = Path(__file__).parents[2] / "client"
LIMIT_S = 60
PREAMBLE = """
import asyncio, threading
import openai
from concurrent.futures import ThreadPoolExecutor
import kairos_client
def ask(client=openai.OpenAI(max_retries=2), **more):
    messages = [{"role": "user", "content": "x"}]
    client.chat.completions.create(model="tiny", messages=messages, **more)
"""
# Importing openai takes longest of what a program does: it has been imported where forks begin.
FORKING = """
import kairos_client.auto
import asyncio, threading, json, os, sys
from concurrent.futures import ThreadPoolExecutor
import openai, openai.resources.chat.completions
for line in sys.stdin:
    program, errors, environ = json.loads(line)
    if os.fork() == 0:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
        os.environ.clear()
        os.environ.update(environ)
        exec(program, {"__name__": "__main__"})
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


def environment(served, **more):
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(CLIENT),
        "OPENAI_BASE_URL": f"{served.url}/v1",
        "OPENAI_API_KEY": "none",
        **more,
    }


@pytest.fixture(scope="module")
def forking():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CLIENT)}
    with subprocess.Popen([sys.executable, "-c", FORKING], env=environ, **pipes) as process:
        yield process


@pytest.fixture
async def run(forking, tmp_path):
    """Run a program that has imported the client, and return what it wrote to stderr."""

    async def run(served, program, **environ):
        errors = tmp_path / "errors"
        request = PREAMBLE + program, str(errors), environment(served, **environ)
        print(json.dumps(request), file=forking.stdin, flush=True)
        status = int(await asyncio.to_thread(forking.stdout.readline))
        assert status == 0, errors.read_text()
        return errors.read_text()

    return run


async def run_alone(served, *command, **environ):
    """Run a command, and return what it wrote to stderr."""
    process = await start_child(
        *command, env=environment(served, **environ), stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(LIMIT_S):
        _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return errors.decode()


def asked(served):
    return [fact.request for fact in served.facts.all(Arrived)]


def who(served):
    return [(each.workflow_id, each.app, each.agent, each.upstream) for each in asked(served)]


async def test_a_program_says_who_calls_and_when_its_workflow_is_over(served, run):
    program = """
with kairos_client.workflow("w-1", app="qa"):
    with kairos_client.agent("planner"):
        ask()
    with kairos_client.agent("worker", upstream="planner"):
        ask()
"""
    assert await run(served, program) == ""

    assert who(served) == [("w-1", "qa", "planner", None), ("w-1", "qa", "worker", "planner")]
    assert (await served.facts.seen(WorkflowEnded)).workflow_id == "w-1"


async def test_tasks_and_threads_inherit_who_calls_and_nobody_else_does(served, run):
    program = """
pool = ThreadPoolExecutor(1)
async def in_task(n):
    with kairos_client.workflow(f"t-{n}"):
        await asyncio.sleep(0.01)
        with kairos_client.agent(f"a-{n}"):
            async with openai.AsyncOpenAI() as client:
                create = client.chat.completions.create
                await create(model="tiny", messages=[{"role": "user", "content": "x"}])
            await asyncio.to_thread(ask)
async def both():
    await asyncio.gather(in_task(1), in_task(2))
asyncio.run(both())
with kairos_client.workflow("t-3"), kairos_client.agent("a-3"):
    pool.submit(ask).result()
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
pool.submit(ask, extra_headers={"X-Kairos-Workflow-Id": "nobody"}).result()
"""
    await run(served, program)

    said = sorted(who(served))
    assert said == sorted(
        2 * [(f"t-{n}", None, f"a-{n}", None) for n in (1, 2, 3)] + [("nobody", None, None, None)]
    )


GENERATORS = {
    "in a context of its own for each step": """
import contextvars
def answer():
    with kairos_client.workflow("w"):
        yield ask()
        yield ask()
steps = answer()
for _ in range(3):
    contextvars.copy_context().run(next, steps, None)
""",
    "in a thread of its own for each step": """
def answer():
    with kairos_client.workflow("w"), kairos_client.agent("a"):
        yield ask()
        yield ask()
steps = answer()
for _ in range(3):
    thread = threading.Thread(target=next, args=(steps, None))
    thread.start()
    thread.join()
""",
    "by fastapi": """
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient
app = FastAPI()
@app.get("/")
def answers():
    def answer():
        with kairos_client.workflow("w"):
            for text in ("one", "two"):
                ask()
                yield text
    return StreamingResponse(answer())
assert TestClient(app).get("/").text == "onetwo"
""",
    "closed early, by another thread": """
def answer():
    with kairos_client.workflow("w"):
        ask()
        ask()
        yield
steps = answer()
next(steps)
thread = threading.Thread(target=steps.close)
thread.start()
thread.join()
""",
    "dropped": """
def answer():
    with kairos_client.workflow("w"):
        ask()
        ask()
        yield
next(answer())
""",
    "between whose steps others call": """
def answer():
    with kairos_client.workflow("w"):
        yield ask()
        yield ask()
for _ in answer():
    ask(extra_headers={"X-Kairos-Workflow-Id": "nobody"})
with kairos_client.workflow("outer"):
    steps = answer()
    next(steps)
    ask()
    next(steps)
    ask()
    next(steps, None)
    ask()
""",
    "two at once": """
def answer(name):
    with kairos_client.workflow(name):
        yield ask()
        yield ask()
for _ in zip(answer("w"), answer("v")):
    pass
ask(extra_headers={"X-Kairos-Workflow-Id": "nobody"})
""",
    "asynchronous, with tasks": """
async def call():
    await asyncio.to_thread(ask)
async def answer():
    with kairos_client.workflow("w"):
        yield await asyncio.gather(call(), call())
async def main():
    async for _ in answer():
        ask()
asyncio.run(main())
""",
    "a context manager of the program's own": """
import contextlib, contextvars
@contextlib.contextmanager
def own():
    with kairos_client.workflow("w"):
        yield
def answer():
    with own():
        yield ask()
        yield ask()
steps = answer()
for _ in range(3):
    contextvars.copy_context().run(next, steps, None)
with contextlib.ExitStack() as stack:
    stack.enter_context(kairos_client.workflow("outer"))
    stack.enter_context(kairos_client.agent("a"))
    ask()
ask(extra_headers={"X-Kairos-Workflow-Id": "nobody"})
""",
}
OTHERS = {  # beside the two calls of workflow "w"
    "between whose steps others call": ["nobody"] * 2 + ["outer"] * 3 + ["w"] * 2,
    "two at once": ["nobody", "v", "v"],
    "asynchronous, with tasks": [None],
    "a context manager of the program's own": ["nobody", "outer"],
}


@pytest.mark.parametrize("name", GENERATORS)
async def test_a_block_in_a_generator_names_its_own_calls_alone(served, name, run):
    assert await run(served, GENERATORS[name]) == ""

    others = [None if each and len(each) > 6 else each for each in OTHERS.get(name, [])]
    named = [each.workflow_id for each in asked(served)]
    known = {"w", "v", "outer", "nobody"}
    found = [each if each in known else None for each in named]
    assert sorted(found, key=str) == sorted(["w", "w", *others], key=str)


POOLS = {
    "executor": "pool = ThreadPoolExecutor(1)\ngive = lambda call: pool.submit(call).result()",
    "executor's map": (
        "pool = ThreadPoolExecutor(1)\ngive = lambda call: list(pool.map(lambda _: call(), [1]))"
    ),
    "thread pool": (
        "from multiprocessing.pool import ThreadPool\npool = ThreadPool(1)\ngive = pool.apply"
    ),
    "thread pool's map": (
        "from multiprocessing.pool import ThreadPool\npool = ThreadPool(1)\n"
        "give = lambda call: pool.map(lambda _: call(), [1])"
    ),
    "thread pool's imap": (
        "from multiprocessing.pool import ThreadPool\npool = ThreadPool(1)\n"
        "give = lambda call: list(pool.imap(lambda _: call(), [1]))"
    ),
    "loop's executor": (
        "pool = ThreadPoolExecutor(1)\n"
        "async def run(call): await asyncio.get_running_loop().run_in_executor(pool, call)\n"
        "give = lambda call: asyncio.run(run(call))"
    ),
    "anyio's threads": (
        "import anyio.to_thread\ngive = lambda call: anyio.run(anyio.to_thread.run_sync, call)"
    ),
    "threads of its own, made by a workflow that has ended": (
        "import queue\nwork, done = queue.Queue(), queue.Queue()\n"
        "def serve():\n    while True:\n        work.get()()\n        done.put(1)\n"
        "def start():\n    threading.Thread(target=serve, daemon=True).start()\n"
        "def give(call):\n    work.put(call)\n    done.get()"
    ),
}


@pytest.mark.parametrize("name", POOLS)
async def test_a_pool_made_inside_a_workflow_calls_for_those_who_give_it_work(served, name, run):
    made = "\n".join(f"    {line}" for line in POOLS[name].splitlines())
    is_own = name.startswith("threads of its own")
    program = f"""
with kairos_client.workflow("a"):
{made}
    {"start()" if is_own else "give(ask)"}
with kairos_client.workflow("b"):
    give(ask)
give(ask)
"""
    await run(served, program)

    named = [each.workflow_id for each in asked(served)]
    if is_own:
        assert "a" not in named
    else:
        assert named[:2] == ["a", "b"]
        assert named[2] not in ("a", "b")


async def test_retries_of_a_call_keep_its_name_and_are_counted(served, engine, run):
    answer, fails = engine.answer, iter([503, 500])

    async def fails_twice(request):
        status = next(fails, 200)
        return await answer(request) if status == 200 else web.json_response({}, status=status)

    engine.answer = fails_twice
    await run(served, 'ask()\nask()\nask(extra_headers={"X-Request-Id": "own"})\n')

    calls = asked(served)
    assert [each.attempt for each in calls] == [1, 2, 3, 1, 1]
    assert len({each.id for each in calls[:3]}) == 1
    assert len({each.id for each in calls}) == 3
    assert calls[4].id == "own"


async def test_aiohttp_calls_are_named_too(served, run):
    program = f"""
import aiohttp
async def post():
    body = {{"model": "tiny", "messages": []}}
    async with aiohttp.ClientSession("{served.url}", headers={{"X-Kairos-App": "own"}}) as session:
        for given in (None, {{"X-Kairos-Agent": "own"}}):
            async with session.post("/v1/chat/completions", json=body, headers=given) as response:
                assert response.status == 200
with kairos_client.workflow("w-1"), kairos_client.agent("planner"):
    asyncio.run(post())
"""
    await run(served, program)

    assert who(served) == [("w-1", "own", "planner", None), ("w-1", "own", "own", None)]


async def test_names_are_made_identifiers(served, run):
    program = """
role = "Senior Data\\nResearcher (é)" + 200 * "x"
with kairos_client.workflow("-é x"), kairos_client.agent(role):
    ask()
with kairos_client.workflow("w"), kairos_client.agent("(é)"):
    ask()
"""
    await run(served, program)

    first, second = who(served)
    assert first[0] == (await served.facts.seen(WorkflowEnded)).workflow_id == "x"
    assert first[2].startswith("Senior-Data-Researcher-xxx")
    assert (len(first[2]), second[2]) == (128, None)


async def test_calls_to_others_are_left_as_they_are(served, engine, run):
    program = f"""
with kairos_client.workflow("w-1"), kairos_client.agent("planner"):
    ask(openai.OpenAI(base_url="{engine.url}/v1"))
"""
    await run(served, program)

    assert asked(served) == []
    assert not [name for name in engine.calls[0].headers if name.startswith("x-kairos")]


async def test_trouble_inside_is_logged_once_and_disturbs_no_call(served, run):
    program = """
import kairos_client.hooks
def broken(given):
    raise ValueError("broken")
kairos_client.hooks.headers = broken
ask()
ask()
"""
    errors = await run(served, program)

    assert len(asked(served)) == 2
    assert errors.count("naming who makes a call failed") == 1


async def test_kairos_run_needs_no_change_of_the_program(served, tmp_path):
    program = tmp_path / "app.py"
    program.write_text(PREAMBLE + 'with kairos_client.agent("planner"):\n    ask()\n')
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text("import os\nos.environ['OWN'] = 'ran'\n")
    program.write_text(program.read_text() + "import os\nassert os.environ['OWN'] == 'ran'\n")
    command = [sys.executable, "-m", "kairos_client.run", "--base-url", f"{served.url}/v1"]

    await run_alone(
        served,
        *(*command, "--app", "qa", sys.executable, str(program)),
        PYTHONPATH=f"{CLIENT}{os.pathsep}{tmp_path / 'site'}",
        OPENAI_BASE_URL="http://127.0.0.1:9/v1",
    )

    assert [each[1:] for each in who(served)] == [("qa", "planner", None)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "say what to run"), (["no-such-program"], "cannot run no-such-program")],
)
async def test_kairos_run_says_what_is_wrong(arguments, said):
    process = await start_child(
        *[sys.executable, "-m", "kairos_client.run", *arguments],
        env={"PYTHONPATH": str(CLIENT), "PATH": os.environ["PATH"]},
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()

    assert process.returncode != 0
    assert said in errors.decode()


async def test_a_service_that_is_not_there_does_not_hold_the_program_up(served, run):
    program = 'with kairos_client.workflow("w-1"):\n    pass\n'

    errors = await run(served, program, OPENAI_BASE_URL="http://127.0.0.1:9/v1")

    assert errors.count("reporting the end of a workflow failed") == 1


async def test_what_the_documentation_says_of_plain_openai_works(kairos, standin):
    served = await kairos(standin.url)
    page = (CLIENT.parent / "docs" / "how-to" / "connect-agents.md").read_text()
    snippet = page.split("\n## Plain openai\n")[1].split("```python\n")[1].split("```")[0]

    await run_alone(served, sys.executable, "-c", snippet)

    [call] = asked(served)
    assert (call.app, call.agent) == ("colours", "writer")
    assert (await served.facts.seen(WorkflowEnded)).workflow_id == call.workflow_id


@pytest.mark.parametrize(
    ("environ", "given"),
    [
        ({"OPENAI_API_KEY": "acme"}, "ask()"),
        ({"OPENAI_API_KEY": "another's"}, 'ask(openai.OpenAI(api_key="acme"))'),
        ({"OPENAI_API_KEY": "another's"}, 'ask(extra_headers={"Authorization": "bearer acme"})'),
    ],
)
async def test_a_workflow_ends_with_the_key_of_the_call_that_began_it(
    kairos, standin, environ, given, run
):
    served = await kairos(standin.url, key=(key("acme"),))
    await run(served, f'\nwith kairos_client.workflow("w-1"):\n    {given}\n', **environ)
    assert (await served.facts.seen(WorkflowEnded)).workflow_id == "w-1"
