"""LLM calls are the same calls, with the same answers, over HTTP and over the bus."""

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import confluent_kafka
import msgspec
import pytest
from aiohttp import web

from kairos.agent import Application, Task, read_result, run, submit
from kairos.agents import bus_llm
from kairos.agents.bus_llm import BusLLM
from kairos.cluster import KafkaCluster, MemoryBus, Producer, Tail, Told, cluster_of, ensure_topics
from kairos.cluster.pool.messages import read_call_headers
from kairos.core import (
    Cancelled,
    InvalidRequest,
    MessageTooLarge,
    Topic,
    Unavailable,
    UpstreamFailed,
)
from kairos.proxy import HttpLLM, Patience
from kairos.settings import Settings

LIMIT_S = 60
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
IDENTITY = {
    "X-Kairos-Workflow-Id": "w",
    "X-Kairos-App": "qa",
    "X-Kairos-Agent": "router",
    "X-Kairos-Upstream": "user",
    "X-Kairos-Parent-Id": "p-1",
    "X-Kairos-Started-At": "7",
    "X-Kairos-Attempt": "2",
    "X-Kairos-Deadline": "90000000000000000",
    "X-Kairos-Budget-Calls": "3",
    "X-Kairos-Budget-Tokens": "4",
    "X-Kairos-Budget-Ms": "5",
    "X-Request-Id": "r",
    "traceparent": TRACE,
}
LOST = object()


def completion(text: str = "hi") -> dict:
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


class Answer(msgspec.Struct):
    status: int = 200
    body: object = msgspec.field(default_factory=completion)
    retry_after: str | None = None
    raw: bytes | None = None  # of a body that is no JSON


def refusal(status: int, message: str, retry_after: str | None = None) -> Answer:
    return Answer(status, {"error": {"message": message}}, retry_after)


class Model:
    """Answers each call with the next of its answers; the last one for ever."""

    def __init__(self, *answers: object) -> None:
        self.answers: list = [*answers] or [Answer()]
        self.calls: list[tuple[dict, Mapping[str, str]]] = []  # bodies, and headers as over HTTP
        self.slept: list[float] = []
        self.patience = Patience(sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def answer(self, body: dict, headers: Mapping[str, str]):
        self.calls.append((body, headers))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@asynccontextmanager
async def over_http(model: Model, /, **options):
    async def handle(request):
        told = {name: request.headers[name] for name in IDENTITY if name in request.headers}
        answer = model.answer(await request.json(), told)
        headers = {"Retry-After": answer.retry_after} if answer.retry_after else {}
        if answer.raw is not None:
            return web.Response(body=answer.raw, status=answer.status, headers=headers)
        return web.json_response(answer.body, status=answer.status, headers=headers)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        async with HttpLLM(url, patience=model.patience, **options) as llm:
            yield llm
    finally:
        await runner.cleanup()


class Taker:
    """Who takes calls from the bus. A test may hold the messages by hand, too."""

    def __init__(self, connection: KafkaCluster, producer: Producer, pool: str) -> None:
        self.connection, self.producer, self.pool = connection, producer, pool
        self.seen: list = []  # all messages on the pool's topic
        self._came = asyncio.Condition()

    async def run(self, tail: Tail, model: Model) -> None:
        while True:
            for message in await tail.batch():
                if message.key == self.pool:
                    await self._take(message, model)

    async def _take(self, message, model: Model) -> None:
        if message.headers["kairos-type"] == "call":
            read_call_headers(dict(message.headers))  # the schema of whoever takes it
            headers = dict(message.headers)
            told = {name: headers[ours] for name, ours in NAMES.items() if ours in headers}
            answer = model.answer(msgspec.json.decode(message.value), told)
            if answer is not LOST:
                await self.reply(message, answer)
        async with self._came:
            self.seen.append(message)
            self._came.notify_all()

    async def reply(self, message, answer: Answer | bytes, request_id: str | None = None) -> None:
        value = answer
        if isinstance(answer, Answer):
            body = answer.body if answer.raw is None else answer.raw.decode() or None
            content = {"status": answer.status, "body": body}
            after = {"retry_after": answer.retry_after} if answer.retry_after else {}
            value = msgspec.json.encode(content | after)
        headers = {"kairos-request-id": request_id or message.headers["kairos-request-id"]}
        await self.producer.send(message.headers["kairos-reply-to"], "k", value, headers)

    async def message(self, number: int, kind: str = "call"):
        """The message of that number, from 1, of its kind."""

        def found():
            seen = [each for each in self.seen if each.headers["kairos-type"] == kind]
            return seen[number - 1] if len(seen) >= number else None

        async with asyncio.timeout(LIMIT_S), self._came:
            return await self._came.wait_for(found)


NAMES = {
    "X-Kairos-Workflow-Id": "kairos-msg-id",
    "X-Kairos-App": "kairos-app",
    "X-Kairos-Agent": "kairos-agent",
    "X-Kairos-Upstream": "kairos-upstream",
    "X-Kairos-Parent-Id": "kairos-parent",
    "X-Kairos-Started-At": "kairos-started-at",
    "X-Kairos-Attempt": "kairos-attempt",
    "X-Kairos-Deadline": "kairos-deadline",
    "X-Kairos-Budget-Calls": "kairos-budget-calls",
    "X-Kairos-Budget-Tokens": "kairos-budget-tokens",
    "X-Kairos-Budget-Ms": "kairos-budget-ms",
    "X-Request-Id": "kairos-request-id",
    "traceparent": "traceparent",
}


@asynccontextmanager
async def over_bus(connection: KafkaCluster, model: Model, /, **options):
    pool = f"pool-{secrets.token_hex(4)}"
    async with AsyncExitStack() as stack:
        llm = BusLLM(
            connection,
            pool=pool,
            name=options.pop("name", pool),
            patience=model.patience,
            **options,
        )
        await made(connection, Topic.REQUESTS, llm.replies)
        producer = await stack.enter_async_context(Producer(connection))
        tail = await stack.enter_async_context(Tail(connection, Topic.REQUESTS))
        taker = Taker(connection, producer, pool)
        taking = asyncio.create_task(taker.run(tail, model))
        try:
            async with asyncio.timeout(LIMIT_S):
                await stack.enter_async_context(llm)
            llm.taker = taker
            yield llm
        finally:
            taking.cancel()
            await asyncio.wait([taking])
            if not taking.cancelled():
                taking.result()


async def made(connection: KafkaCluster, *topics: str) -> None:
    if "MOCK" in connection.options.get("client.id", ""):
        client = confluent_kafka.Producer(connection.client())
        for topic in topics:
            client.list_topics(topic, timeout=60)  # makes it
    else:
        await ensure_topics(connection, topics)


@pytest.fixture(scope="module")
def mock(mock_kafka):
    """A cluster inside librdkafka."""
    options = {"client.id": "MOCK", "log_level": "0"}
    return KafkaCluster(servers=mock_kafka.servers, options=options)


@pytest.fixture(params=["mock", pytest.param("kafka", marks=pytest.mark.kafka)])
def connection(request):
    found = request.getfixturevalue(request.param)
    return found if request.param == "mock" else cluster_of(Settings(bus=found), {})


@pytest.fixture(params=["http", "mock", pytest.param("kafka", marks=pytest.mark.kafka)])
def calling(request):
    """`async with calling(model) as llm`."""
    if request.param == "http":
        return over_http
    found = request.getfixturevalue(request.param)
    connection = found if request.param == "mock" else cluster_of(Settings(bus=found), {})

    def start(model, /, **options):
        return over_bus(connection, model, **options)

    return start


class TestEitherWay:
    async def test_the_body_and_who_calls_arrive_and_the_answer_returns(self, calling):
        model = Model()
        async with calling(model) as llm:
            assert await llm.complete({"max_tokens": 1}, IDENTITY) == completion()
        assert model.calls == [({"max_tokens": 1}, IDENTITY)]

    async def test_a_model_is_asked_for_where_the_body_names_none(self, calling):
        model = Model()
        async with calling(model, model="tiny") as llm:
            await llm.complete({}, IDENTITY)
            await llm.complete({"model": "other"}, IDENTITY)
        assert [body for body, _ in model.calls] == [{"model": "tiny"}, {"model": "other"}]

    async def test_a_refusal_for_now_is_tried_again_as_the_same_call(self, calling):
        model = Model(refusal(429, "full", "3"), refusal(503, "no", "?"), Answer())
        async with calling(model) as llm:
            assert await llm.complete({}, IDENTITY) == completion()
        assert model.slept == [3, 1]
        assert [told["X-Kairos-Attempt"] for _, told in model.calls] == ["2", "3", "4"]
        assert {told["X-Request-Id"] for _, told in model.calls} == {"r"}

    async def test_the_fifth_refusal_is_the_last(self, calling):
        model = Model(refusal(429, "the queue is full"))
        async with calling(model) as llm:
            with pytest.raises(Unavailable, match="answered 429: the queue is full"):
                await llm.complete({}, IDENTITY)
        assert len(model.calls) == 5

    @pytest.mark.parametrize(
        ("answer", "error", "message"),
        [
            (refusal(400, "bad"), InvalidRequest, "the model's server answered 400: bad"),
            (refusal(504, "late"), UpstreamFailed, "the model's server answered 504: late"),
            (Answer(500, raw=b"<h1>"), UpstreamFailed, "the model's server answered 500: <h1>"),
            (Answer(502, raw=b""), UpstreamFailed, "the model's server answered 502: nothing"),
            (Answer(200, ["x"]), UpstreamFailed, "the answer is not a JSON object"),
        ],
        ids=["400", "504", "no JSON", "nothing", "no object"],
    )
    async def test_an_error_says_the_same(self, calling, answer, error, message):
        model = Model(answer)
        async with calling(model) as llm:
            with pytest.raises(error, match=f"^{message}"):
                await llm.complete({}, IDENTITY)
        assert len(model.calls) == 1

    async def test_agents_make_the_same_calls_and_their_workflows_end_alike(self, calling):
        app, model, bus = Application("relay", entry="first"), Model(), MemoryBus()
        model.answers = [
            Answer(200, completion("a")),
            refusal(503, "no instance"),
            Answer(200, completion("b")),
            refusal(400, "too long"),  # for ever: the workflow's end
        ]

        @app.agent("first")
        async def first(task: Task) -> None:
            said = await task.complete("s", "1", max_tokens=3)
            await task.send("second", {"said": said + await task.complete("s", "2", max_tokens=3)})

        @app.agent("second")
        async def second(task: Task) -> None:
            await task.finish({"said": await task.complete("s", task.text("said"), max_tokens=5)})

        results: asyncio.Queue = asyncio.Queue()
        async with calling(model) as llm:
            jobs = [
                asyncio.create_task(run([app], bus, llm)),
                asyncio.create_task(bus.consume(Topic.RESULTS, "user", results.put)),
            ]
            await submit(bus, app, {}, now_us=7, msg_id="w", deadline_us=9 * 10**16)
            async with asyncio.timeout(LIMIT_S):
                result = read_result(await results.get()).value
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
        assert result == {
            "error": "second failed: InvalidRequest: the model's server answered 400: too long"
        }
        texts = [body["messages"][-1]["content"] for body, _ in model.calls]
        assert texts == ["1", "2", "2", "ab", "ab", "ab"]
        ids = [told["X-Request-Id"] for _, told in model.calls]
        assert [ids.index(each) for each in ids] == [0, 1, 1, 3, 3, 3]
        seen = [
            (told["X-Kairos-Agent"], told["X-Kairos-Upstream"], told["X-Kairos-Attempt"])
            for _, told in model.calls
        ]
        first_one, second_one = ("first", "user"), ("second", "first")
        assert seen == [
            (*first_one, "1"),
            (*first_one, "1"),
            (*first_one, "2"),
            (*second_one, "1"),
            (*second_one, "2"),
            (*second_one, "3"),
        ]
        parents = [told.get("X-Kairos-Parent-Id") for _, told in model.calls]
        assert parents == [None, ids[0], ids[0], ids[1], ids[1], ids[1]]
        assert {told["X-Kairos-Deadline"] for _, told in model.calls} == {str(9 * 10**16)}


class TestBus:
    async def test_a_call_is_a_message_for_the_pool_that_says_where_its_answer_goes(
        self, connection
    ):
        async with over_bus(connection, Model(), name="a host") as llm:
            await llm.complete({}, {"X-Request-Id": "r"})
            message = await llm.taker.message(1)
        assert message.key == llm.taker.pool
        assert dict(message.headers) == {
            "kairos-type": "call",
            "kairos-request-id": "r",
            "kairos-reply-to": "kairos.replies.a-host",
            "kairos-attempt": "1",
        }

    async def test_replies_to_others_and_replies_said_again_reach_nobody(self, connection):
        model = Model(LOST)
        async with over_bus(connection, model) as llm:
            asked = asyncio.create_task(llm.complete({}, {"X-Request-Id": "mine"}))
            message = await llm.taker.message(1)
            await llm.taker.reply(message, Answer(200, {"n": 0}), request_id="another's")
            for n in (1, 2):
                await llm.taker.reply(message, Answer(200, {"n": n}))
            assert await asked == {"n": 1}
            again = asyncio.create_task(llm.complete({}, {"X-Request-Id": "next"}))
            await llm.taker.reply(message, Answer(200, {"n": 3}))
            message = await llm.taker.message(2)
            await llm.taker.reply(message, Answer(200, {"n": 4}))
            assert await again == {"n": 4}
            assert llm._waiting == {}

    async def test_a_reply_that_is_lost_is_asked_for_again_under_the_same_name(self, connection):
        model = Model(LOST, Answer())
        async with over_bus(connection, model, timeout_s=0.5) as llm:
            assert await llm.complete({}, {"X-Request-Id": "r"}) == completion()
        assert [told["X-Request-Id"] for _, told in model.calls] == ["r", "r"]
        assert [told["X-Kairos-Attempt"] for _, told in model.calls] == ["1", "2"]

    async def test_meanwhile_it_is_asked_for_again_and_that_is_no_new_attempt(self, connection):
        model = Model(LOST, LOST, Answer())
        async with over_bus(connection, model, again_s=0.1) as llm:
            assert await llm.complete({}, {"X-Request-Id": "r"}) == completion()
        assert len(model.calls) >= 3
        assert {told["X-Request-Id"] for _, told in model.calls} == {"r"}
        assert {told["X-Kairos-Attempt"] for _, told in model.calls} == {"1"}

    async def test_replies_that_never_come_are_an_error_in_the_end(self, connection):
        model = Model(LOST)
        async with over_bus(connection, model, timeout_s=0.05) as llm:
            with pytest.raises(Unavailable, match=r"no reply came within 0\.05 s"):
                await llm.complete({}, {})
            assert llm._waiting == {}

    async def test_that_nobody_answers_for_a_pool_is_said_once(
        self, connection, monkeypatch, caplog
    ):
        monkeypatch.setattr(bus_llm, "_QUIET_S", 0.05)
        model = Model(LOST)
        async with over_bus(connection, model, timeout_s=1) as llm:
            with pytest.raises(Unavailable):
                await llm.complete({}, {})
        said = [each.getMessage() for each in caplog.records if "no reply" in each.message]
        assert len(said) == 1
        assert f"--pool {llm.taker.pool}" in said[0]

    async def test_a_pool_that_has_answered_before_is_not_doubted(
        self, connection, monkeypatch, caplog
    ):
        model = Model()
        async with over_bus(connection, model, timeout_s=1) as llm:
            assert await llm.complete({}, {}) == completion()
            monkeypatch.setattr(bus_llm, "_QUIET_S", 0.05)
            model.answers = [LOST]
            with pytest.raises(Unavailable):
                await llm.complete({}, {})
        assert "no reply has come" not in caplog.text

    async def test_of_a_caller_that_leaves_the_pool_is_told(self, connection):
        model = Model(LOST)
        async with over_bus(connection, model) as llm:
            asked = asyncio.create_task(llm.complete({}, {"X-Request-Id": "r"}))
            await llm.taker.message(1)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            told = msgspec.json.decode((await llm.taker.message(1, "told")).value, type=Told)
            assert told == Told(llm.replies, Cancelled("r"))
            assert llm._waiting == {}
            # A reply that was on its way is nobody's, and the next call works.
            model.answers = [Answer()]
            await llm.taker.reply(await llm.taker.message(1), Answer(200, {"late": 1}))
            assert await llm.complete({}, {"X-Request-Id": "s"}) == completion()

    async def test_whoever_leaves_with_its_process_is_told_of_too(self, connection):
        model = Model(LOST)
        async with over_bus(connection, model) as llm:
            asked = asyncio.create_task(llm.complete({}, {"X-Request-Id": "r"}))
            await llm.taker.message(1)
            asked.cancel()
            await asyncio.wait([asked])
            await llm.__aexit__(None, None, None)
            assert (await llm.taker.message(1, "told")).value.endswith(b'"request_id":"r"}}')
            await llm.__aenter__()

    async def test_of_two_callers_under_one_name_the_later_gets_the_answer(self, connection):
        model = Model(LOST, Answer())
        async with over_bus(connection, model) as llm:
            earlier = asyncio.create_task(llm.complete({}, {"X-Request-Id": "r"}))
            await llm.taker.message(1)
            assert await llm.complete({}, {"X-Request-Id": "r"}) == completion()
            with pytest.raises(UpstreamFailed, match="made again"):
                await earlier

    @pytest.mark.parametrize(
        "value",
        [b"", b"[]", b'{"status":"x"}', b'{"status":200', b"\xff", b'{"status":7,"body":{}}'],
    )
    async def test_a_reply_that_is_none_is_an_error(self, connection, value):
        model = Model(LOST)
        async with over_bus(connection, model) as llm:
            asked = asyncio.create_task(llm.complete({}, {"X-Request-Id": "r"}))
            await llm.taker.reply(await llm.taker.message(1), value)
            with pytest.raises(UpstreamFailed, match="the reply cannot be read"):
                await asked

    async def test_a_call_over_the_limit_of_messages_is_refused_at_once(self, connection):
        async with over_bus(connection, Model()) as llm:
            with pytest.raises(MessageTooLarge, match=r"kairos\.requests exceeds"):
                await llm.complete({"x": "y" * (1 << 20)}, {"X-Request-Id": "r"})
            assert llm._waiting == {}

    @pytest.mark.kafka
    async def test_calls_outlive_a_crash_of_the_broker(self, broker):
        model = Model(LOST)
        async with over_bus(cluster_of(Settings(bus=broker.url), {}), model) as llm:
            waits = asyncio.create_task(llm.complete({}, {"X-Request-Id": "before"}))
            message = await llm.taker.message(1)
            broker.kill()
            asked = asyncio.create_task(llm.complete({}, {"X-Request-Id": "meanwhile"}))
            await asyncio.to_thread(broker.start)
            await llm.taker.reply(message, Answer(200, {"n": 1}))
            async with asyncio.timeout(LIMIT_S):
                assert await waits == {"n": 1}
            await llm.taker.reply(await llm.taker.message(2), Answer(200, {"n": 2}))
            async with asyncio.timeout(LIMIT_S):
                assert await asked == {"n": 2}
        assert [told["X-Request-Id"] for _, told in model.calls] == ["before", "meanwhile"]
