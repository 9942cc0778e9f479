import asyncio
from collections.abc import Mapping
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from kairos.agent import Application, Result, Task, read_result, run, submit
from kairos.cluster import Envelope, MemoryBus, read_envelope, read_value, write_message
from kairos.core import InvalidRequest, Message, SetupError, Topic, Unavailable, UpstreamFailed
from kairos.proxy import HttpLLM, Patience

TIMEOUT_S = 60
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class EchoLLM:
    """Says what it was told, and keeps each call's body and headers."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict, Mapping[str, str]]] = []

    async def complete(self, body, headers):
        self.calls.append((body, headers))
        return completion(body["messages"][-1]["content"])


def completion(text: str | None) -> dict:
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


class Desk:
    """Where a user waits for results."""

    def __init__(self, bus: MemoryBus) -> None:
        self.bus = bus
        self.results: list[Result] = []
        self.messages: list[Message] = []
        self._came = asyncio.Condition()

    async def take(self, message: Message) -> None:
        async with self._came:
            self.messages.append(message)
            self.results.append(read_result(message))
            self._came.notify_all()

    async def next(self) -> None:
        """Wait for one result more."""
        number = len(self.results)
        async with asyncio.timeout(TIMEOUT_S), self._came:
            await self._came.wait_for(lambda: len(self.results) > number)

    async def result(self, workflow_id: str) -> dict:
        def found():
            return [r.value for r in self.results if r.workflow_id == workflow_id]

        async with asyncio.timeout(TIMEOUT_S), self._came:
            return (await self._came.wait_for(found))[0]


@asynccontextmanager
async def serving(*apps: Application, llm=None, bus=None, **options):
    desk = Desk(bus or MemoryBus())
    jobs = [
        asyncio.create_task(run(apps, desk.bus, llm or EchoLLM(), **options)),
        asyncio.create_task(desk.bus.consume(Topic.RESULTS, "user", desk.take)),
    ]
    try:
        yield desk
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


def relay() -> Application:
    """Two agents: the first asks the model twice and hands on, the second asks once and ends."""
    app = Application("relay", entry="first")

    @app.agent("first")
    async def first(task: Task) -> None:
        await task.complete("system", "a", max_tokens=3)
        said = await task.complete("system", "b", max_tokens=3)
        await task.send("second", task.value | {"said": said})

    @app.agent("second")
    async def second(task: Task) -> None:
        await task.finish(task.value | {"said": await task.complete("s", "c", max_tokens=5)})

    return app


def an_envelope(**changes) -> Envelope:
    fields = {
        "workflow_id": "w",
        "app": "relay",
        "agent": "first",
        "upstream": "user",
        "started_at": 5,
        "traceparent": TRACE,
    }
    return Envelope(**(fields | changes))


class TestWorkflow:
    async def test_the_value_of_the_last_agent_reaches_the_user_with_unknown_fields_kept(self):
        app = relay()
        async with serving(app) as desk:
            workflow_id = await submit(desk.bus, app, {"text": "t", "else": [1]}, now_us=7)
            assert await desk.result(workflow_id) == {"text": "t", "else": [1], "said": "c"}

    async def test_every_call_says_whose_it_is(self):
        app, llm = relay(), EchoLLM()
        async with serving(app, llm=llm) as desk:
            await submit(desk.bus, app, {}, now_us=7, msg_id="flow-1")
            await desk.result("flow-1")
        said = [
            {k: v for k, v in headers.items() if k.startswith("X-Kairos")}
            for _, headers in llm.calls
        ]
        common = {
            "X-Kairos-Workflow-Id": "flow-1",
            "X-Kairos-App": "relay",
            "X-Kairos-Started-At": "7",
            "X-Kairos-Attempt": "1",
        }
        by_first = common | {"X-Kairos-Agent": "first", "X-Kairos-Upstream": "user"}
        by_second = common | {"X-Kairos-Agent": "second", "X-Kairos-Upstream": "first"}
        ids = [headers["X-Request-Id"] for _, headers in llm.calls]
        assert said == [
            by_first,
            by_first | {"X-Kairos-Parent-Id": ids[0]},
            by_second | {"X-Kairos-Parent-Id": ids[1]},
        ]
        assert desk.messages[0].headers["kairos-parent"] == ids[2]

    async def test_an_agent_that_asks_nothing_hands_on_the_call_that_led_to_it(self):
        app, llm = Application("relay", entry="first"), EchoLLM()

        @app.agent("first")
        async def first(task: Task) -> None:
            await task.send("second", {})

        @app.agent("second")
        async def second(task: Task) -> None:
            await task.complete("s", "u", max_tokens=1)
            await task.finish({})

        async with serving(app, llm=llm) as desk:
            for parent in (None, "earlier-1"):
                message = write_message(an_envelope(workflow_id=f"{parent}", parent=parent), {})
                await desk.bus.publish(app.inbox("first"), message)
                await desk.result(f"{parent}")
        assert [headers.get("X-Kairos-Parent-Id") for _, headers in llm.calls] == [
            None,
            "earlier-1",
        ]

    async def test_calls_made_at_once_have_one_parent_and_the_next_follows_the_last_of_them(self):
        app = Application("fan", entry="only")
        gates = {text: asyncio.Event() for text in ("b", "c")}
        llm = EchoLLM()

        class Gated(EchoLLM):
            async def complete(self, body, headers):
                text = body["messages"][-1]["content"]
                llm.calls.append((body, headers))
                if text == "b":
                    await gates["b"].wait()  # answered after c
                elif text == "c":
                    gates["b"].set()
                return completion(text)

        @app.agent("only")
        async def only(task: Task) -> None:
            await task.complete("s", "a", max_tokens=1)
            at_once = [task.complete("s", text, max_tokens=1) for text in ("b", "c")]
            await asyncio.gather(*at_once)
            await task.complete("s", "d", max_tokens=1)
            await task.finish({})

        async with serving(app, llm=Gated()) as desk:
            await desk.result(await submit(desk.bus, app, {}, now_us=1))
        ids = [headers["X-Request-Id"] for _, headers in llm.calls]
        parents = [headers.get("X-Kairos-Parent-Id") for _, headers in llm.calls]
        assert parents == [None, ids[0], ids[0], ids[1]]

    async def test_a_call_without_an_answer_led_to_nothing(self):
        app = Application("shaky", entry="only")

        class SecondFails(EchoLLM):
            async def complete(self, body, headers):
                answer = await super().complete(body, headers)
                if len(self.calls) == 2:
                    raise UpstreamFailed("broken off")
                return answer

        @app.agent("only")
        async def only(task: Task) -> None:
            await task.complete("s", "a", max_tokens=1)
            with suppress(UpstreamFailed):
                await task.complete("s", "b", max_tokens=1)
            await task.complete("s", "c", max_tokens=1)
            await task.finish({})

        llm = SecondFails()
        async with serving(app, llm=llm) as desk:
            await desk.result(await submit(desk.bus, app, {}, now_us=1))
        first = llm.calls[0][1]["X-Request-Id"]
        assert [headers.get("X-Kairos-Parent-Id") for _, headers in llm.calls] == [
            None,
            first,
            first,
        ]

    async def test_a_workflow_is_one_trace_and_every_call_has_a_name_of_its_own(self):
        app, llm = relay(), EchoLLM()
        async with serving(app, llm=llm) as desk:
            for workflow_id in ("one", "two"):
                await submit(desk.bus, app, {}, now_us=7, msg_id=workflow_id)
                await desk.result(workflow_id)
        traces = [headers["traceparent"].split("-")[1] for _, headers in llm.calls]
        spans = [headers["traceparent"].split("-")[2] for _, headers in llm.calls]
        assert traces == [traces[0]] * 3 + [traces[3]] * 3
        assert traces[0] != traces[3]
        assert spans[0] == spans[1] != spans[2]
        assert len({headers["X-Request-Id"] for _, headers in llm.calls}) == 6

    async def test_the_body_is_a_chat_completion_that_repeats(self):
        app, llm = relay(), EchoLLM()
        async with serving(app, llm=llm) as desk:
            await submit(desk.bus, app, {}, now_us=7, msg_id="w")
            await desk.result("w")
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "c"}]
        expected = {"messages": messages, "max_tokens": 5, "temperature": 0.0, "seed": 1}
        assert llm.calls[-1][0] == expected

    async def test_the_result_carries_the_envelope_and_headers_of_others(self):
        app = relay()
        async with serving(app) as desk:
            message = write_message(an_envelope(), {}, {"tenant": "blue", "kairos-new": "x"})
            await desk.bus.publish(app.inbox("first"), message)
            await desk.result("w")
        headers = dict(desk.messages[0].headers)
        trace = headers.pop("traceparent").split("-")[1]
        assert trace == TRACE.split("-")[1]
        assert headers.pop("kairos-parent").endswith("-1")
        assert headers == {
            "kairos-version": "1",
            "kairos-msg-id": "w",
            "kairos-app": "relay",
            "kairos-agent": "user",
            "kairos-upstream": "second",
            "kairos-started-at": "5",
            "kairos-attempt": "1",
            "tenant": "blue",
            "kairos-new": "x",
        }

    async def test_workflows_run_side_by_side_and_keep_their_own_values(self):
        app = Application("pair", entry="meet")
        everyone = asyncio.Barrier(3)

        @app.agent("meet")
        async def meet(task: Task) -> None:
            await everyone.wait()
            await task.finish({"mine": task.value["n"], "id": task.envelope.workflow_id})

        async with serving(app) as desk:
            ids = [await submit(desk.bus, app, {"n": n}, now_us=n) for n in range(3)]
            results = [await desk.result(workflow_id) for workflow_id in ids]
        assert results == [{"mine": n, "id": ids[n]} for n in range(3)]


class TestFailure:
    async def test_a_task_that_fails_at_first_is_tried_again_under_the_same_call_names(self):
        app, llm = Application("shaky", entry="only"), EchoLLM()

        @app.agent("only")
        async def only(task: Task) -> None:
            await task.complete("s", "u", max_tokens=1)
            if task.envelope.attempt < 3:
                raise ValueError("not yet")
            await task.finish({"attempt": task.envelope.attempt})

        async with serving(app, llm=llm) as desk:
            workflow_id = await submit(desk.bus, app, {}, now_us=1)
            assert await desk.result(workflow_id) == {"attempt": 3}
        assert [headers["X-Kairos-Attempt"] for _, headers in llm.calls] == ["1", "2", "3"]
        assert len({headers["X-Request-Id"] for _, headers in llm.calls}) == 1

    async def test_a_task_that_never_succeeds_ends_its_workflow_with_the_error(self):
        app = Application("broken", entry="only")

        @app.agent("only")
        async def only(task: Task) -> None:
            raise UpstreamFailed("the model is gone")

        async with serving(app) as desk:
            workflow_id = await submit(desk.bus, app, {}, now_us=1)
            result = await desk.result(workflow_id)
        assert result == {"error": "only failed: UpstreamFailed: the model is gone"}
        assert desk.messages[0].headers["kairos-upstream"] == "only"

    async def test_sending_to_an_agent_that_does_not_exist_ends_the_workflow_with_the_error(self):
        app = Application("lost", entry="only")

        @app.agent("only")
        async def only(task: Task) -> None:
            await task.send("nobody", {})

        async with serving(app) as desk:
            result = await desk.result(await submit(desk.bus, app, {}, now_us=1))
        assert result["error"].endswith("lost has no agent 'nobody'; it has: only")

    async def test_a_value_that_is_no_object_ends_the_workflow_with_the_error(self):
        app = relay()
        async with serving(app) as desk:
            message = msgspec.structs.replace(write_message(an_envelope(), {}), value=b"[1]")
            await desk.bus.publish(app.inbox("first"), message)
            assert "not a JSON object" in (await desk.result("w"))["error"]

    @pytest.mark.parametrize(
        "message",
        [
            Message(key="w", value=b"{}"),
            Message(key="other", value=b"{}", headers=write_message(an_envelope(), {}).headers),
            write_message(an_envelope(app="other"), {}),
            write_message(an_envelope(agent="second"), {}),
        ],
        ids=["no headers", "another key", "another application", "another agent"],
    )
    async def test_what_is_no_message_for_the_agent_goes_to_dead_letters_and_no_further(
        self, message
    ):
        app, bus, llm = relay(), MemoryBus(), EchoLLM()
        letters: asyncio.Queue[Message] = asyncio.Queue()
        grave = asyncio.create_task(bus.consume(Topic.DEAD_LETTERS, "test", letters.put))
        async with serving(app, bus=bus, llm=llm) as desk:
            await bus.publish(app.inbox("first"), message)
            letter = await asyncio.wait_for(letters.get(), TIMEOUT_S)
            assert "InvalidRequest" in letter.headers["kairos-dead-reason"]
            assert llm.calls == []
            # The agent is alive.
            await submit(desk.bus, app, {}, now_us=1, msg_id="next")
            await desk.result("next")
        grave.cancel()

    async def test_the_dead_letters_of_other_topics_are_nobodys_result(self):
        app, bus = relay(), MemoryBus()
        stray = write_message(an_envelope(), {}, {"kairos-dead-topic": "kairos.agents.other.x"})
        await bus.publish(Topic.DEAD_LETTERS, stray)
        async with serving(app, bus=bus) as desk:
            await desk.result(await submit(bus, app, {}, now_us=1))
        assert [r.value for r in desk.results if "error" in r.value] == []

    @pytest.mark.parametrize(
        "response", [{}, {"choices": []}, {"choices": [{}]}, {"choices": "no"}, {"error": "x"}]
    )
    async def test_an_answer_that_is_no_completion_is_an_error(self, response):
        class BadLLM:
            async def complete(self, body, headers):
                return response

        app = relay()
        async with serving(app, llm=BadLLM()) as desk:
            result = await desk.result(await submit(desk.bus, app, {}, now_us=1))
        assert "UpstreamFailed: the model's answer is not a chat completion" in result["error"]

    async def test_an_answer_without_text_is_empty(self):
        class MuteLLM:
            async def complete(self, body, headers):
                return completion(None)

        app = relay()
        async with serving(app, llm=MuteLLM()) as desk:
            assert await desk.result(await submit(desk.bus, app, {}, now_us=1)) == {"said": ""}


class TestSending:
    async def test_what_a_failed_attempt_sent_never_goes_out(self):
        app, attempts = Application("pair", entry="first"), []

        @app.agent("first")
        async def first(task: Task) -> None:
            attempts.append(task.envelope.attempt)
            await task.send("second", {"attempt": task.envelope.attempt})
            if task.envelope.attempt < 3:
                raise ValueError("not yet")
            await task.send("second", {"last": True})

        @app.agent("second")
        async def second(task: Task) -> None:
            await task.finish(task.value)

        async with serving(app) as desk:
            await submit(desk.bus, app, {}, now_us=1, msg_id="w")
            # The order of a workflow's messages is kept: the last to come is the last of all.
            while not desk.results or "last" not in desk.results[-1].value:
                await desk.next()
        assert attempts == [1, 2, 3]
        assert [result.value for result in desk.results] == [{"attempt": 3}, {"last": True}]

    async def test_nothing_goes_out_before_the_agent_returns(self):
        app, sent = Application("slow", entry="only"), []
        finished, leave = asyncio.Event(), asyncio.Event()

        class Watched(MemoryBus):
            async def publish(self, topic, message):
                sent.append(topic)
                await super().publish(topic, message)

        @app.agent("only")
        async def only(task: Task) -> None:
            await task.finish({})
            finished.set()
            await leave.wait()

        async with serving(app, bus=Watched()) as desk:
            workflow_id = await submit(desk.bus, app, {}, now_us=1)
            await finished.wait()
            assert sent == [app.inbox("only")]
            leave.set()
            await desk.result(workflow_id)
        assert sent == [app.inbox("only"), Topic.RESULTS]


class TestDeadline:
    async def test_a_deadline_goes_with_the_workflow_and_its_calls(self):
        app, llm, seen = relay(), EchoLLM(), []

        @app.agent("watcher")
        async def watcher(task: Task) -> None:
            seen.append(task.deadline)

        async with serving(app, llm=llm, now_us=lambda: 10) as desk:
            await submit(desk.bus, app, {}, now_us=7, msg_id="w", deadline_us=11)
            await desk.result("w")
            await desk.bus.publish(
                app.inbox("watcher"), write_message(an_envelope(agent="watcher", deadline=11), {})
            )
            await submit(desk.bus, app, {}, now_us=7, msg_id="without")
            await desk.result("without")
        assert desk.messages[0].headers["kairos-deadline"] == "11"
        assert [headers.get("X-Kairos-Deadline") for _, headers in llm.calls] == ["11"] * 3 + [
            None
        ] * 3
        assert seen == [11]

    async def test_a_task_that_comes_after_its_deadline_ends_its_workflow_unworked(self):
        app, llm = relay(), EchoLLM()
        async with serving(app, llm=llm, now_us=lambda: 11) as desk:
            await submit(desk.bus, app, {}, now_us=7, msg_id="w", deadline_us=11)
            assert await desk.result("w") == {"error": "the deadline passed before first was done"}
        assert llm.calls == []
        assert desk.messages[0].headers["kairos-upstream"] == "first"

    async def test_a_task_that_is_tried_again_after_its_deadline_ends_its_workflow(self):
        app, now, attempts = Application("slow", entry="only"), [10], []

        @app.agent("only")
        async def only(task: Task) -> None:
            attempts.append(task.envelope.attempt)
            now[0] = 11
            raise Unavailable("the model is gone")

        async with serving(app, now_us=lambda: now[0]) as desk:
            await submit(desk.bus, app, {}, now_us=7, msg_id="w", deadline_us=11)
            assert await desk.result("w") == {"error": "the deadline passed before only was done"}
        assert attempts == [1]


class TestSetup:
    async def test_only_the_agents_that_are_named_are_run(self):
        app, llm = relay(), EchoLLM()

        @app.agent("third")
        async def third(task: Task) -> None:
            await task.finish({})

        only = [app.inbox("third"), app.inbox("second")]
        async with serving(app, llm=llm, only=only) as desk:
            await submit(desk.bus, app, {}, now_us=1, msg_id="waits")
            third_message = write_message(an_envelope(agent="third"), {})
            await desk.bus.publish(app.inbox("third"), third_message)
            await desk.result("w")
            assert llm.calls == []
            async with serving(app, bus=desk.bus, only=[app.inbox("first")]):
                assert await desk.result("waits") == {"said": "c"}

    def test_names_that_could_not_be_part_of_a_topic_are_refused(self):
        for name in ("", "a.b", "a b", "é", "x" * 65, "a\n", "-a"):
            with pytest.raises(SetupError, match="must be 1 to 64 letters"):
                Application(name, entry="a")
            with pytest.raises(SetupError):
                Application("a", entry="a").agent(name)(print)

    @pytest.mark.parametrize("name", ["first", "user"])
    def test_an_agents_name_is_its_own_and_not_the_users(self, name):
        with pytest.raises(SetupError, match="is taken"):
            relay().agent(name)(print)

    async def test_an_application_without_its_entry_does_not_start(self):
        with pytest.raises(SetupError, match="no agent 'nowhere' to begin with"):
            await run([Application("a", entry="nowhere")], MemoryBus(), EchoLLM())

    @pytest.mark.parametrize("msg_id", ["", "a b", "x" * 129, "a\n", "../é"])
    async def test_a_msg_id_that_is_no_identifier_is_refused(self, msg_id):
        with pytest.raises(InvalidRequest, match="a msg_id has"):
            await submit(MemoryBus(), relay(), {}, now_us=1, msg_id=msg_id)

    async def test_a_text_that_is_missing_or_no_text_is_an_invalid_request(self):
        task = Task(relay(), write_message(an_envelope(), {"n": 1}), EchoLLM())
        for field in ("n", "missing"):
            with pytest.raises(InvalidRequest, match=f"no text '{field}'"):
                task.text(field)


class TestEnvelope:
    @given(
        workflow_id=st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.:@/+=-]{0,127}", fullmatch=True),
        agent=st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", fullmatch=True),
        started_at=st.integers(0, 10**18 - 1),
        attempt=st.integers(1, 999),
        parent=st.none() | st.from_regex(r"[a-f0-9]{16}-[1-9]", fullmatch=True),
    )
    def test_what_is_written_is_read_back(self, **fields):
        envelope = an_envelope(**fields)
        message = write_message(envelope, {"a": 1})
        assert message.key == fields["workflow_id"]
        assert read_envelope(message) == envelope
        assert read_value(message) == {"a": 1}

    @given(
        name=st.sampled_from(sorted(write_message(an_envelope(parent="p"), {}).headers)),
        text=st.text() | st.sampled_from(["0", "2", "-1", "a.b", "w\n", TRACE.upper(), "1e3", ""]),
    )
    def test_whatever_a_header_says_it_is_valid_or_refused(self, name, text):
        message = write_message(an_envelope(), {})
        message = msgspec.structs.replace(message, headers={**message.headers, name: text})
        try:
            envelope = read_envelope(message)
        except InvalidRequest:
            return
        assert read_envelope(write_message(envelope, {})) == envelope
        assert text.isascii()
        assert "\n" not in text

    @given(st.binary())
    def test_whatever_the_value_is_it_is_an_object_or_refused(self, raw):
        with suppress(InvalidRequest):
            assert isinstance(read_value(Message(key="w", value=raw)), dict)

    @pytest.mark.parametrize(
        "raw",
        [b'{"a":' * 100_000, b'{"a": "' + b"x" * (1 << 20) + b'"}', b'{"a": "\xff"}', b"null"],
        ids=["deep", "large", "not UTF-8", "null"],
    )
    def test_values_that_would_hurt_are_refused(self, raw):
        with pytest.raises(InvalidRequest):
            read_value(Message(key="w", value=raw))

    def test_more_than_48_headers_of_others_are_refused(self):
        others = {f"h{n}": "" for n in range(49)}
        with pytest.raises(InvalidRequest, match="at most 48 headers in addition to Kairos's own"):
            read_envelope(write_message(an_envelope(), {}, others))
        others.popitem()
        read_envelope(write_message(an_envelope(), {}, others))

    def test_a_result_is_read_back(self):
        message = write_message(an_envelope(agent="user"), {"a": 1})
        assert read_result(message) == Result(workflow_id="w", app="relay", value={"a": 1})


CLOSING = web.AppKey("closing", asyncio.Event)


class Server:
    """Answers each call with the next of its answers; the last one for ever."""

    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.seen: list[web.Request] = []
        self.bodies: list[dict] = []
        self.slept: list[float] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        self.bodies.append(await request.json())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    @asynccontextmanager
    async def llm(self, **options):
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.handle)
        app[CLOSING] = closing = asyncio.Event()
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/"
        try:
            patience = Patience(sleep=self.sleep)
            async with HttpLLM(self.url, patience=patience, **options) as llm:
                yield llm
        finally:
            closing.set()
            await runner.cleanup()


def says(status=200, body=None, **headers):
    async def answer(request):
        headers_ = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response(body or completion("hi"), status=status, headers=headers_)

    return answer


def refuses(status, message, **headers):
    return says(status, {"error": {"message": message}}, **headers)


async def breaks_off(request):
    request.transport.close()
    return web.Response()


async def breaks_off_in_the_answer(request):
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"{")
    request.transport.close()
    return response


async def never_answers(request):
    await request.app[CLOSING].wait()
    return web.Response()


class TestHttpLLM:
    async def test_body_headers_and_key_arrive_and_the_answer_returns(self):
        server = Server(says())
        async with server.llm(api_key="k") as llm:
            answer = await llm.complete({"max_tokens": 1}, {"X-Kairos-App": "qa"})
        assert answer == completion("hi")
        assert server.bodies == [{"max_tokens": 1}]
        headers = server.seen[0].headers
        assert (headers["X-Kairos-App"], headers["Authorization"]) == ("qa", "Bearer k")

    async def test_a_refusal_for_now_is_tried_again_as_the_same_call(self):
        server = Server(
            refuses(429, "full", Retry_After="3"), breaks_off, refuses(503, "no", Retry_After="?"),
            says(),
        )  # fmt: skip
        async with server.llm() as llm:
            identity = {"X-Request-Id": "r", "X-Kairos-Attempt": "2"}
            assert await llm.complete({}, identity) == completion("hi")
        assert server.slept == [3, 1, 1]
        assert [r.headers["X-Kairos-Attempt"] for r in server.seen] == ["2", "3", "4", "5"]
        assert {r.headers["X-Request-Id"] for r in server.seen} == {"r"}

    async def test_retry_after_is_bounded(self):
        server = Server(refuses(503, "later", Retry_After="99999999999999"), says())
        async with server.llm() as llm:
            await llm.complete({}, {})
        assert server.slept == [30]

    async def test_the_fifth_refusal_is_the_last(self):
        server = Server(refuses(429, "the queue is full"))
        async with server.llm() as llm:
            with pytest.raises(Unavailable, match="answered 429: the queue is full"):
                await llm.complete({}, {})
        assert len(server.seen) == 5

    async def test_a_server_that_is_not_there_is_tried_five_times(self):
        server = Server(says())
        async with server.llm():
            pass  # and now it is gone
        async with HttpLLM(server.url, patience=Patience(sleep=server.sleep)) as llm:
            with pytest.raises(Unavailable, match="no connection to http"):
                await llm.complete({}, {})
        assert len(server.slept) == 4

    @pytest.mark.parametrize(
        ("answer", "error", "message"),
        [
            (refuses(400, "no such field"), InvalidRequest, "answered 400: no such field"),
            (refuses(500, "oops"), UpstreamFailed, "answered 500: oops"),
            (says(302, Location="http://127.0.0.1:1/"), UpstreamFailed, "answered 302"),
            (says(body=["no object"]), UpstreamFailed, "not a JSON object"),
            (breaks_off_in_the_answer, UpstreamFailed, "broke off its answer"),
            (says(body={"x": "y" * (8 << 20)}), UpstreamFailed, "exceeds 8388608 bytes"),
        ],
        ids=["400", "500", "redirect", "no object", "broken off", "too large"],
    )
    async def test_what_another_try_would_not_mend_is_an_error_at_once(
        self, answer, error, message
    ):
        server = Server(answer)
        async with server.llm() as llm:
            with pytest.raises(error, match=message):
                await llm.complete({}, {})
        assert len(server.seen) == 1

    async def test_an_answer_that_does_not_come_is_an_error(self):
        server = Server(never_answers)
        async with server.llm(timeout_s=0.1) as llm:
            with pytest.raises(UpstreamFailed, match="no answer from"):
                await llm.complete({}, {})
        assert len(server.seen) == 1

    def test_a_base_url_without_a_scheme_is_refused(self):
        with pytest.raises(SetupError, match="must begin with http"):
            HttpLLM("localhost:8000/v1")
