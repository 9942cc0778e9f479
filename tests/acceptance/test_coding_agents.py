"""Coding agents finish scripted tasks before Kairos, with keys on, and nothing changed but a URL.

The engine is the stand-in: it calls the tools that its script names. What a model would make of
their results is left out. At the end each asks a real vLLM, whose model of random weights calls no
tools.
"""

import asyncio
import json
import os
import socket
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
from openai import AsyncOpenAI

from kairos.core import Arrived, Cancelled, Failed, Finished
from kairos.host import start_child
from tests.e2e.batch_files import key
from tests.e2e.conftest import kairos, pytest_asyncio_loop_factories  # noqa: F401 - fixtures
from tests.support import vllm
from tests.support.simulate import standin as standins
from tests.support.simulate.standin import Rule, Script, ToolUse

pytestmark = pytest.mark.acceptance
BIN = Path(__file__).parents[2] / ".venv-agents" / "node_modules" / ".bin"
LIMIT_S = 180
SHORT = 24  # tokens of an answer: the model of random weights does not end by itself
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
TIMES = 10
CODEX = """
model = "tiny"
model_provider = "kairos"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.kairos]
name = "Kairos"
base_url = "{url}/v1"
env_key = "KAIROS_KEY"
wire_api = "responses"
"""


def of(asked, tool, arguments, *, times=1, says="All is done."):
    """Have the engine call a tool when it is asked that."""
    return Rule(system="a", user=[asked], replies=[says], calls=ToolUse(tool, arguments, times))


async def _run(command, environ, where, status=0):
    process = await start_child(
        *command,
        env={"PATH": os.environ["PATH"], "HOME": str(where), **environ},
        cwd=where,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(LIMIT_S):
        said, errors = await process.communicate()
    assert process.returncode == status, (said + errors).decode()
    return said.decode()


async def claude_code(url, shown, where, task, *, status=0):
    """Give Claude Code a task, and return what it says in the end."""
    environ = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": shown,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "1000",
    } | dict.fromkeys(
        ("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"), "tiny"
    )
    allowed = ("--allowedTools", "Bash,Agent")
    command = (str(BIN / "claude"), "-p", task, "--output-format", "json", *allowed)
    return json.loads(await _run(command, environ, where, status))


async def codex(url, shown, where, task):
    """Give Codex a task, and return what it says in the end."""
    home = where / ".codex"
    home.mkdir()
    (home / "config.toml").write_text(CODEX.format(url=url))
    environ = {"CODEX_HOME": str(home), "KAIROS_KEY": shown}
    command = (str(BIN / "codex"), "exec", "--skip-git-repo-check", "--json", task)
    lines = [json.loads(line) for line in (await _run(command, environ, where)).splitlines()]
    done = [each["item"] for each in lines if each["type"] == "item.completed"]
    ran = [each for each in done if each["type"] == "command_execution"]
    return {"result": done[-1]["text"], "ran": len(ran)} | lines[-1]


@asynccontextmanager
async def agentic_api(url, where):
    """Run vLLM's Agentic API before a URL, and yield its own. It passes its callers' keys on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await start_child(
        *(str(BIN.parents[1] / "python" / "bin" / "agentic-server"), "--llm-api-base", url),
        *("--gateway-host", "127.0.0.1", "--gateway-port", str(port)),
        *("--db-url", f"sqlite://{where / 'responses.db'}?mode=rwc"),
        env={"PATH": os.environ["PATH"], "HOME": str(where)},
        stdin=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession() as session:
            while True:
                with suppress(aiohttp.ClientConnectionError):
                    await session.get(f"http://127.0.0.1:{port}/health")
                    break
                assert process.returncode is None
                await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _calls(served):
    assert served.facts.all(Failed, Cancelled) == []
    calls = [fact.request for fact in served.facts.all(Arrived)]
    used = {fact.request_id: fact for fact in served.facts.all(Finished)}
    assert all(used[each.id].completion_tokens for each in calls)
    return calls, used


def _check_chain(calls):
    """Check that they are one workflow of one agent, each call following from the one before."""
    assert len({(each.workflow_id, each.agent, each.tenant) for each in calls}) == 1
    assert calls[0].tenant == "acme"
    assert [each.parent_ids for each in calls[1:]] == [(each.id,) for each in calls[:-1]]


async def test_claude_code_makes_ten_tool_calls(kairos, tmp_path):  # noqa: F811
    rules = (
        of("count to ten", "Bash", {"command": "echo one more", "description": "x"}, times=TIMES),
    )
    settings = standins.StandInSettings(model="tiny", max_model_len=200_000, kv_tokens=400_000)
    async with standins.serve(settings, Script(rules)) as standin:
        served = await kairos(standin.url, key=(key("acme"),))
        said = await claude_code(served.url, "acme", tmp_path, "count to ten")
        assert said["result"] == "All is done."
        calls, used = _calls(served)
        assert len(calls) == 1 + TIMES
        _check_chain(calls)
        assert calls[0].workflow_id == said["session_id"]
        assert said["usage"]["input_tokens"] == sum(used[each.id].prompt_tokens for each in calls)
        assert calls[-1].prefix[: len(calls[0].prefix) - 1] == calls[0].prefix[:-1]


async def test_claude_codes_sub_agent_is_an_agent_of_its_workflow(kairos, tmp_path):  # noqa: F811
    helper = {
        "description": "find",
        "prompt": "find the answer to it all",
        "subagent_type": "general-purpose",
    }
    rules = (
        of("find the answer", "Bash", {"command": "echo 42", "description": "x"}, says="It is 42."),
        of("ask a helper", "Agent", helper),
    )
    settings = standins.StandInSettings(model="tiny", max_model_len=200_000, kv_tokens=400_000)
    async with standins.serve(settings, Script(rules)) as standin:
        served = await kairos(standin.url, key=(key("acme"),))
        said = await claude_code(served.url, "acme", tmp_path, "ask a helper")
        assert said["result"] == "All is done."
        (first, asked, goes_on, last), _ = _calls(served)
        assert len({each.workflow_id for each in (first, asked, goes_on, last)}) == 1
        assert first.agent == last.agent != asked.agent == goes_on.agent
        assert (asked.upstream, goes_on.parent_ids) == (first.agent, (asked.id,))


async def test_codex_makes_ten_tool_calls(kairos, tmp_path):  # noqa: F811
    rules = (of("count to ten", "exec_command", {"cmd": "echo one more"}, times=TIMES),)
    settings = standins.StandInSettings(model="tiny", max_model_len=200_000, kv_tokens=400_000)
    async with standins.serve(settings, Script(rules)) as standin:
        served = await kairos(standin.url, key=(key("acme"),))
        said = await codex(served.url, "acme", tmp_path, "count to ten")
        assert (said["result"], said["ran"]) == ("All is done.", TIMES)
        calls, used = _calls(served)
        assert len(calls) == 1 + TIMES
        _check_chain(calls)
        assert said["usage"]["input_tokens"] == sum(used[each.id].prompt_tokens for each in calls)


async def test_qwen_code_makes_ten_tool_calls(kairos, tmp_path):  # noqa: F811
    shell = {"command": "echo one more", "is_background": False}
    rules = (of("count to ten", "run_shell_command", shell, times=TIMES),)
    settings = standins.StandInSettings(model="tiny", max_model_len=200_000, kv_tokens=400_000)
    async with standins.serve(settings, Script(rules)) as standin:
        served = await kairos(standin.url, key=(key("acme"),))
        environ = {
            "OPENAI_API_KEY": "acme",
            "OPENAI_BASE_URL": f"{served.url}/v1",
            "OPENAI_MODEL": "tiny",
        }
        command = (str(BIN / "qwen"), "-p", "count to ten", "--yolo", "--auth-type", "openai")
        said = await _run(command, environ, tmp_path)
        assert said.strip() == "All is done."
        calls, _ = _calls(served)
        assert len(calls) == 1 + TIMES
        _check_chain(calls)


async def test_the_sdks_for_node_make_calls_of_each_kind(kairos, tmp_path):  # noqa: F811
    async with standins.serve(standins.StandInSettings(model="tiny")) as standin:
        served = await kairos(standin.url, key=(key("acme"),))
        program = str(Path(__file__).parent / "node_sdks.mjs")
        command = ("node", program, str(BIN.parent), served.url, "acme")
        said = {name: what for name, *what in json.loads(await _run(command, {}, tmp_path))}
    of_five = ("chat", "chat stream", "response", "message", "message stream")
    assert {name: said[name] for name in of_five} == {key_0: [5] for key_0 in of_five}
    assert (said["embeddings"], said["count"]) == ([2], [3])
    assert said["openai"] == said["anthropic"] == [404, "NotFoundError"]


async def test_vllms_agentic_api_keeps_a_conversation_before_kairos(kairos, tmp_path):  # noqa: F811
    """Ask twice. The Agentic API holds responses itself, and sends the whole conversation."""
    async with standins.serve(standins.StandInSettings(model="tiny")) as standin:
        served = await kairos(standin.url, key=(key("acme"),))
        async with (
            agentic_api(served.url, tmp_path) as url,
            AsyncOpenAI(base_url=f"{url}/v1", api_key="acme", max_retries=0) as client,
        ):
            one = await client.responses.create(model="tiny", input="count to ten")
            asked = {"model": "tiny", "input": "go on", "previous_response_id": one.id}
            two = [each async for each in await client.responses.create(stream=True, **asked)]
        calls, used = _calls(served)
    assert one.output_text
    assert two[-1].type == "response.completed"
    assert len(calls) == 2
    _check_chain(calls)
    assert one.usage.input_tokens == used[calls[0].id].prompt_tokens


@pytest.mark.parametrize("agent", [claude_code, codex])
async def test_a_wrong_key_is_told_at_once(kairos, tmp_path, agent):  # noqa: F811
    async with standins.serve(standins.StandInSettings(model="tiny")) as standin:
        served = await kairos(standin.url, key=(key("acme"),))
        with pytest.raises(AssertionError, match=r"not known here|401"):
            await agent(served.url, "another", tmp_path, "count to ten")
        assert served.facts.all(Arrived) == []


@pytest.fixture(scope="module")
def real_vllm(tmp_path_factory):
    options = ("--count", 1, "--max-model-len", 32736, *TOOLS)
    short = ("--override-generation-config", json.dumps({"max_new_tokens": SHORT}))
    with vllm.running(tmp_path_factory.mktemp("vllm"), *options, *short) as (url,):
        yield url


@pytest.mark.timeout(600)
async def test_codex_asks_a_real_vllm(kairos, tmp_path, real_vllm):  # noqa: F811
    served = await kairos(real_vllm, key=(key("acme"),))
    said = await codex(served.url, "acme", tmp_path, "count to ten")
    assert said["result"].strip()
    [call], used = _calls(served)
    assert call.tenant == "acme"
    assert said["usage"]["output_tokens"] == used[call.id].completion_tokens
    assert said["usage"]["input_tokens"] == used[call.id].prompt_tokens > 1000


@pytest.mark.timeout(600)
async def test_claude_code_asks_a_real_vllm(kairos, tmp_path, real_vllm):  # noqa: F811
    """Claude Code asks for each cut answer to go on, and then gives up."""
    served = await kairos(real_vllm, key=(key("acme"),))
    said = await claude_code(served.url, "acme", tmp_path, "count to ten", status=1)
    assert "output token maximum" in said["result"]
    calls, used = _calls(served)
    _check_chain(calls)
    assert calls[0].workflow_id == said["session_id"]
    usage, all_used = said["usage"], [used[each.id] for each in calls]
    assert usage["output_tokens"] == sum(each.completion_tokens for each in all_used)
    read = sum(each.cached_tokens or 0 for each in all_used)
    assert usage["cache_read_input_tokens"] == read > 1000
