"""The engine stand-in: its API as vLLM's, its timing model, its failures.

Time is instant, or the engine is paused, so that nothing here waits for a clock.
"""

import asyncio
import json
import math
from contextlib import asynccontextmanager

import aiohttp
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import InstanceStatus, SetupError
from kairos.engines import read_metrics
from kairos.simulate.standin import script
from kairos.simulate.standin.batch import INSTANT, Batch, Timing
from kairos.simulate.standin.bodies import StandInPrompt
from kairos.simulate.standin.script import Rule, Script, ScriptLimits, ToolUse
from kairos.simulate.standin.server import StandInSettings, serve

HELLO = {"model": "standin", "messages": [{"role": "user", "content": "Hello"}]}
CHAT = "/v1/chat/completions"
DEEP = b'{"model": "standin", "extra": ' + b"[" * 100_000
LIMIT_S = 60


@pytest.fixture
async def engine():
    async with serve() as standin:
        yield standin


@pytest.fixture
async def http(engine):
    async with aiohttp.ClientSession(engine.url) as session:
        yield session


@pytest.fixture
async def client(engine):
    async with openai.AsyncOpenAI(
        base_url=f"{engine.url}/v1", api_key="none", max_retries=0
    ) as client:
        yield client


@asynccontextmanager
async def engine_with(**settings):
    async with (
        serve(StandInSettings(**settings)) as standin,
        aiohttp.ClientSession(standin.url) as session,
    ):
        yield standin, session


async def refusal(http, body, path=CHAT):
    async with http.post(path, data=body if isinstance(body, bytes) else json.dumps(body)) as reply:
        error = (await reply.json())["error"]
        assert error["code"] == reply.status
        return reply.status, error["type"], error["message"]


async def events(http, body, path=CHAT):
    """The data of a stream's events, as text."""
    async with http.post(path, json=body | {"stream": True}) as reply:
        assert reply.content_type == "text/event-stream"
        text = await reply.text()
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


async def test_a_chat_streams_the_text_that_it_answers_whole(client):
    whole = await client.chat.completions.create(**HELLO, max_tokens=12)
    stream = await client.chat.completions.create(
        **HELLO, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None] * 12 + ["length"]
    assert chunks[-1].usage == whole.usage
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (2, 12)


async def test_completions_are_served_whole_and_streamed(client):
    prompt = {"model": "standin", "prompt": "Once upon a time"}
    whole = await client.completions.create(**prompt)
    stream = await client.completions.create(**prompt, stream=True)
    assert "".join([c.choices[0].text async for c in stream]) == whole.choices[0].text
    assert whole.usage.completion_tokens == 16


async def test_token_ids_are_a_prompt_of_as_many_tokens(client):
    reply = await client.completions.create(model="standin", prompt=[5, 6, 70000], max_tokens=1)
    assert reply.usage.prompt_tokens == 4  # the last is written with five digits


async def test_responses_are_served_whole_and_streamed(client):
    asked = {"model": "standin", "input": "Hello", "max_output_tokens": 5}
    whole = await client.responses.create(**asked)
    assert (whole.status, whole.usage.output_tokens) == ("incomplete", 5)
    async with client.responses.stream(**asked) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert final.output_text == whole.output_text
    assert final.usage == whole.usage
    assert kinds[0] == "response.created"
    assert kinds.count("response.output_text.delta") == 5
    assert kinds[-1] == "response.completed"


async def test_a_response_that_ends_by_itself_is_completed(client):
    async with serve(says=Script((Rule(system="", replies=["Yes."]),))) as standin:
        there = client.with_options(base_url=f"{standin.url}/v1")
        reply = await there.responses.create(model="standin", input="Well?", instructions="Say so")
    assert (reply.status, reply.output_text) == ("completed", "Yes.")


LOOKS_UP = Rule(
    system="You look",
    replies=["It is blue."],
    calls=ToolUse("look_up", {"word": "sky", "pages": [1, 2]}),
)
LOOK_UP = {"name": "look_up", "parameters": {"type": "object"}}


@pytest.fixture
async def looking():
    async with serve(says=Script((LOOKS_UP,))) as standin:
        yield standin


def of_chat(*messages):
    tools = [{"type": "function", "function": LOOK_UP}]
    asked = [{"role": "system", "content": "You look things up."}, *messages]
    return {"model": "standin", "messages": asked, "tools": tools}


async def test_a_scripted_tool_call_is_made_in_a_chat_until_its_result_is_there(client, looking):
    there = client.with_options(base_url=f"{looking.url}/v1")
    question = {"role": "user", "content": "Which colour?"}
    whole = (await there.chat.completions.create(**of_chat(question))).choices[0]
    async with there.chat.completions.stream(**of_chat(question)) as stream:
        streamed = (await stream.get_final_completion()).choices[0]
    (call,) = whole.message.tool_calls
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "look_up",
        {"word": "sky", "pages": [1, 2]},
    )
    (again,) = streamed.message.tool_calls
    assert streamed.finish_reason == "tool_calls"
    assert again.function.arguments == call.function.arguments
    assert again.id != call.id

    result = {"role": "tool", "tool_call_id": call.id, "content": "blue"}
    asked = of_chat(question, whole.message.model_dump(exclude_none=True), result)
    reply = await there.chat.completions.create(**asked)
    assert reply.choices[0].message.content == "It is blue."
    del asked["tools"]
    assert (await there.chat.completions.create(**asked)).choices[0].finish_reason == "stop"


async def test_a_scripted_tool_call_is_made_in_a_response_until_its_result_is_there(
    client, looking
):
    there = client.with_options(base_url=f"{looking.url}/v1")
    tools = [{"type": "function", "strict": False, **LOOK_UP}]
    asked = {"model": "standin", "instructions": "You look things up.", "tools": tools}
    question = {"role": "user", "content": "Which colour?"}
    (call,) = (await there.responses.create(**asked, input=[question])).output
    async with there.responses.stream(**asked, input=[question]) as stream:
        kinds = [event.type async for event in stream]
        (again,) = (await stream.get_final_response()).output
    assert (call.type, call.name, again.name) == ("function_call", "look_up", "look_up")
    assert json.loads(call.arguments) == json.loads(again.arguments) == LOOKS_UP.calls.arguments
    assert "response.function_call_arguments.done" in kinds
    assert "response.content_part.added" not in kinds

    result = {"type": "function_call_output", "call_id": call.call_id, "output": "blue"}
    reply = await there.responses.create(
        **asked, input=[question, call.model_dump(exclude_none=True), result]
    )
    assert reply.output_text == "It is blue."


async def test_embeddings_are_the_same_as_floats_and_in_base64(client):
    asked = {"model": "standin", "input": ["one", "two", "one"]}
    packed = (await client.embeddings.create(**asked)).data  # the client asks for base64
    floats = (await client.embeddings.create(**asked, encoding_format="float")).data
    for a, b in zip(packed, floats, strict=True):
        assert a.embedding == pytest.approx(b.embedding, rel=1e-6)
    assert floats[0].embedding == floats[2].embedding != floats[1].embedding
    assert math.hypot(*floats[0].embedding) == pytest.approx(1)


async def test_the_request_id_comes_back_in_the_reply(http):
    async with http.post(CHAT, json=HELLO, headers={"X-Request-Id": "mine"}) as reply:
        assert (await reply.json())["id"] == "chatcmpl-mine"


async def test_min_tokens_and_ignore_eos_set_the_length(client):
    async with serve(says=Script((Rule(system="", replies=["Yes."]),))) as standin:
        there = client.with_options(base_url=f"{standin.url}/v1")

        async def length(**options):
            reply = await there.chat.completions.create(**HELLO, **options)
            return reply.usage.completion_tokens, reply.choices[0].finish_reason

        assert await length() == (1, "stop")
        assert await length(extra_body={"min_tokens": 7}) == (7, "stop")
        assert await length(max_tokens=20, extra_body={"ignore_eos": True}) == (20, "length")
        assert await length(max_completion_tokens=3, extra_body={"min_tokens": 7}) == (3, "length")


@pytest.mark.parametrize(
    ("body", "status", "kind", "message"),
    [
        (HELLO | {"model": "other"}, 404, "NotFoundError", "`other` does not exist"),
        (b"{bad", 400, "BadRequestError", "malformed"),
        (b'{"model": "\xff"}', 400, "BadRequestError", "cannot be read"),
        (DEEP, 400, "BadRequestError", "cannot be read"),
        ({"model": "standin"}, 400, "BadRequestError", "Field required: messages"),
        (HELLO | {"n": 2}, 400, "BadRequestError", "$.n"),
        (HELLO | {"max_tokens": 0}, 400, "BadRequestError", "$.max_tokens"),
        (HELLO | {"max_tokens": 8191}, 400, "BadRequestError", "maximum context length is 8192"),
    ],
)
async def test_what_cannot_be_served_is_refused_as_vllm_does(http, body, status, kind, message):
    refused_status, refused_kind, refused_message = await refusal(http, body)
    assert (refused_status, refused_kind) == (status, kind)
    assert message in refused_message


async def test_a_prompt_longer_than_the_context_is_refused(http):
    body = {"model": "standin", "prompt": "x" * 4 * 8192}
    status, _, message = await refusal(http, body, "/v1/completions")
    assert status == 400
    assert "8192 input tokens" in message


@pytest.mark.parametrize(
    ("path", "message"),
    [("/v1/completions", "prompt"), ("/v1/responses", "input")],
)
async def test_each_route_names_the_field_that_it_needs(http, path, message):
    assert message in (await refusal(http, {"model": "standin"}, path))[2]


async def test_several_prompts_in_one_request_are_refused(http):
    body = {"model": "standin", "prompt": ["one", "two"]}
    assert "one prompt per request" in (await refusal(http, body, "/v1/completions"))[2]


async def test_models_health_and_tokenize_answer(http):
    async with http.get("/v1/models") as reply:
        model = (await reply.json())["data"][0]
        assert (model["id"], model["max_model_len"]) == ("standin", 8192)
    async with http.get("/health") as reply:
        assert reply.status == 200
    async with http.post("/tokenize", json={"model": "standin", "prompt": "x" * 9}) as reply:
        assert (await reply.json())["count"] == 3


async def test_metrics_tell_who_runs_who_waits_and_the_memory_taken():
    async with engine_with(max_num_seqs=1, max_model_len=100, kv_tokens=160) as (engine, http):
        engine.batch.pause()
        calls = [asyncio.create_task(events(http, HELLO | {"max_tokens": 30})) for _ in range(3)]
        await engine.until(lambda e: len(e.received) == 3)
        async with http.get("/metrics") as reply:
            before = await reply.text()
        engine.batch.resume()
        await asyncio.gather(*calls)
        async with http.get("/metrics") as reply:
            after = await reply.text()
    labels = '{engine="0",model_name="standin"}'
    assert f"vllm:num_requests_waiting{labels} 3.0" in before
    assert f"vllm:num_requests_waiting{labels} 0.0" in after
    assert f"vllm:num_requests_running{labels} 0.0" in after
    assert f"vllm:kv_cache_usage_perc{labels} 0.0" in after
    assert "standin:requests_finished_total 3" in after
    told = read_metrics("standin", before.encode())
    # As many as can be used: of the blocks that it tells, one is its own, as in vLLM.
    assert 'num_gpu_blocks="11"' in before
    assert (told.cache.engines, told.cache.kv_tokens, told.cache.block_size) == (1, 160, 16)
    assert not told.cache.prefix_caching
    assert told.status == InstanceStatus(
        "standin",
        kv_used=0,
        running=0,
        waiting=3,
        waiting_for_room=3,
        preemptions=0,
        queried_tokens=0,
        cached_tokens=0,
    )


async def test_a_paused_engine_takes_calls_and_answers_them_once_resumed(engine, http):
    async with http.post("/pause") as reply:
        assert reply.status == 200
    call = asyncio.create_task(events(http, HELLO | {"max_tokens": 2}))
    await engine.until(lambda e: len(e.received) == 1)
    async with http.get("/health"):  # a whole exchange later there is still no answer
        assert not call.done()
    async with http.post("/resume") as reply:
        assert reply.status == 200
    assert (await call)[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_aborts_its_call_before_the_first_byte(engine, http, stream):
    engine.batch.pause()
    call = asyncio.create_task(http.post(CHAT, json=HELLO | {"stream": stream}))
    await engine.until(lambda e: len(e.received) == 1)
    call.cancel()
    async with asyncio.timeout(LIMIT_S):
        await engine.until(lambda e: e.aborted == 1)
    assert not engine.batch.waiting
    assert engine.finished == 0


async def test_a_client_that_leaves_a_stalled_stream_aborts_its_call(engine, http):
    body = HELLO | {"stream": True, "fail": "stall", "max_tokens": 8, "min_tokens": 8}
    async with http.post(CHAT, json=body) as reply:
        for _ in range(1 + 4):  # the role, half of the tokens
            assert (await reply.content.readline()).startswith(b"data: ")
            await reply.content.readline()
        async with http.get("/health"):  # a whole exchange later the stream is still open
            assert not reply.content.at_eof()
        assert engine.aborted == 0
        reply.close()
    async with asyncio.timeout(LIMIT_S):
        await engine.until(lambda e: e.aborted == 1)


async def test_a_client_that_leaves_while_tokens_come_aborts_its_call(engine, http):
    body = HELLO | {"stream": True, "max_tokens": 8000, "ignore_eos": True}
    async with http.post(CHAT, json=body) as reply:
        await reply.content.readline()
        engine.batch.pause()
        reply.close()
    async with asyncio.timeout(LIMIT_S):
        await engine.until(lambda e: e.aborted == 1)
    assert not engine.batch.running


async def test_a_cut_stream_breaks_after_half_of_its_tokens(engine, http):
    body = HELLO | {"stream": True, "fail": "cut", "max_tokens": 8, "min_tokens": 8}
    received = []
    async with http.post(CHAT, json=body) as reply:

        async def read():
            async for line in reply.content:
                received.append(line)  # noqa: PERF401 - kept when the next one fails

        with pytest.raises(aiohttp.ClientPayloadError):
            await read()
    assert sum(line.startswith(b"data: ") for line in received) == 1 + 4
    assert b'"finish_reason":"' not in b"".join(received)
    assert (engine.finished, engine.aborted) == (0, 0)


async def test_a_cut_whole_reply_is_no_reply(http):
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await http.post(CHAT, json=HELLO | {"fail": "cut"})


async def test_an_error_in_mid_stream_is_an_event_then_done(http):
    chunks = await events(http, HELLO | {"fail": "error", "max_tokens": 8, "min_tokens": 8})
    assert json.loads(chunks[-2])["error"]["code"] == 500
    assert chunks[-1] == "[DONE]"
    assert len(chunks) == 1 + 4 + 2  # the role, half of the tokens, the error


async def test_an_error_in_a_whole_reply_is_500(http):
    assert (await refusal(http, HELLO | {"fail": "error"}))[0] == 500


async def test_a_call_that_hangs_gets_not_even_a_status(engine, http):
    call = asyncio.create_task(http.post(CHAT, json=HELLO | {"fail": "hang", "stream": True}))
    await engine.until(lambda e: len(e.received) == 1)
    async with http.get("/health"):
        assert not call.done()
    call.cancel()
    async with asyncio.timeout(LIMIT_S):
        await engine.until(lambda e: e.aborted == 1)


async def test_an_engine_can_fail_every_call():
    async with engine_with(fail="unavailable") as (_, http):
        assert (await refusal(http, HELLO))[0] == 503


def test_a_context_larger_than_the_memory_is_refused():
    with pytest.raises(SetupError, match="max_model_len is 200"):
        StandInSettings(max_model_len=200, kv_tokens=100)


class Steps:
    """Stands in for the sleep of each step: records how long it is, and does something."""

    def __init__(self, monkeypatch, meanwhile=lambda: None):
        self.lengths = []
        self.begun = asyncio.Event()
        self._meanwhile = meanwhile
        self._sleep = asyncio.sleep
        monkeypatch.setattr("kairos.simulate.standin.batch.asyncio", self)

    def __getattr__(self, name):
        return getattr(asyncio, name)

    async def sleep(self, seconds):
        self.lengths.append(seconds)
        self._meanwhile()
        self.begun.set()
        await self._sleep(0)


async def finish(batch, *calls):
    """Run the engine until all these calls, (prompt tokens, reply tokens), are done, in order of
    their end."""
    order = []

    async def one(index, prompt_tokens, length):
        with batch.call(prompt_tokens, ["x "] * length) as call:
            async for _ in call:
                assert len(batch.running) <= batch.max_num_seqs
                assert sum(c.peak_tokens for c in batch.running) <= batch.kv_tokens
        order.append(index)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(i, *call)) for i, call in enumerate(calls)]
        stepping = group.create_task(batch.run())
        await asyncio.wait(tasks)
        stepping.cancel()
    return order


async def test_a_step_costs_its_base_each_sequence_and_the_new_prompts(monkeypatch):
    steps = Steps(monkeypatch)
    timing = Timing(step_s=1.0, step_per_seq_s=0.25, prefill_tokens_per_s=10.0)
    await finish(Batch(max_num_seqs=2, kv_tokens=1000, timing=timing), (20, 2), (40, 3), (10, 1))
    assert steps.lengths == [1.5 + 6.0, 1.5, 1.5 + 1.0]


async def test_calls_beyond_the_sequence_limit_wait_in_order():
    batch = Batch(max_num_seqs=1, kv_tokens=1000, timing=INSTANT)
    assert await finish(batch, (1, 9), (1, 1), (1, 5)) == [0, 1, 2]


async def test_memory_makes_calls_wait_and_no_smaller_call_overtakes():
    batch = Batch(max_num_seqs=8, kv_tokens=100, timing=INSTANT)
    assert await finish(batch, (50, 30), (50, 20), (1, 1)) == [0, 2, 1]


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=20),
    st.integers(1, 4),
)
def test_every_call_ends_and_the_limits_always_hold(calls, max_num_seqs):
    batch = Batch(max_num_seqs=max_num_seqs, kv_tokens=100, timing=INSTANT)
    order = asyncio.run(finish(batch, *calls))  # which asserts the limits at each token
    assert sorted(order) == list(range(len(calls)))
    assert (batch.used_tokens, len(batch.waiting)) == (0, 0)


async def test_pausing_in_the_middle_of_a_step_holds_back_its_tokens(monkeypatch):
    batch = Batch(max_num_seqs=1, kv_tokens=100, timing=INSTANT)
    steps = Steps(monkeypatch, meanwhile=batch.pause)
    call = asyncio.create_task(finish(batch, (1, 1)))
    await steps.begun.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    assert batch.used_tokens == 1
    batch.resume()
    assert await call == [0]


RULES = (
    Rule(system="Router", user=["how MANY"], replies=["mathematics"]),
    Rule(system="router", replies=["humanities"]),
    Rule(system="writer", replies=["one two three"], agent="writer"),
)
LENGTHS = {"writer": [*range(1, 200)]}
ENOUGH = ScriptLimits(max_tokens=1000)


def tokens_of(says, system, user, seed=None):
    return says.reply(StandInPrompt(system, user), ENOUGH, seed).tokens


def test_a_rules_text_is_repeated_to_the_length_drawn():
    said = Script(RULES, 0, {"writer": [7]}).reply(StandInPrompt("writer", ""), ENOUGH, None)
    assert ("".join(said.tokens), said.finish) == ("one two threeone two threeone ", "stop")


def test_a_reply_stands_as_it_is_where_no_length_is_known():
    assert "".join(tokens_of(Script(RULES), "writer", "")) == "one two three"
    assert tokens_of(Script(RULES, 0, LENGTHS), "router", "") == ["humanities"]


def test_tokens_keep_every_character_of_the_text():
    text = "```python\ndef f(x):\n    return x\n```\n"
    assert "".join(script.tokenize(text)) == text


@given(
    st.sampled_from(("writer", "router")) | st.text(),
    st.text(),
    st.integers(0, 3),
    st.none() | st.integers(),
    st.builds(
        ScriptLimits,
        max_tokens=st.integers(1, 300),
        min_tokens=st.integers(0, 400),
        ignore_eos=st.booleans(),
    ),
)
def test_a_reply_is_a_function_of_seed_and_prompt_and_keeps_its_limits(
    system, user, seed, asked_seed, limits
):
    says, again = Script(RULES, seed, LENGTHS), Script(RULES, seed, LENGTHS)
    said = says.reply(StandInPrompt(system, user), limits, asked_seed)
    assert said == again.reply(StandInPrompt(system, user), limits, asked_seed)
    assert 1 <= len(said.tokens) <= limits.max_tokens
    assert len(said.tokens) >= min(limits.min_tokens, limits.max_tokens)
    if said.finish == "length":
        assert len(said.tokens) == limits.max_tokens


def test_a_script_that_cannot_be_read_says_why(tmp_path):
    with pytest.raises(SetupError, match="No such file"):
        script.load(tmp_path / "missing.json")
    broken = tmp_path / "broken.json"
    broken.write_text('[{"system": "x", "replies": []}]')
    with pytest.raises(SetupError, match=r"broken\.json is not a script.*replies"):
        script.load(broken)
    with pytest.raises(SetupError, match=r"broken\.json:1: not a call"):
        script.load_lengths(broken)
