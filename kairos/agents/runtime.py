"""Runtime of agents: register an agent with its handling of messages.

    app = Application("qa", entry="router")

    @app.agent("router")
    async def router(task: Task) -> None:
        verdict = await task.complete("You route questions.", task.text("text"), max_tokens=4)
        await task.send("mathematics" if "math" in verdict else "humanities", task.value)

    @app.agent("mathematics")
    async def mathematics(task: Task) -> None:
        answer = await task.complete("You solve problems.", task.text("text"), max_tokens=100)
        await task.finish({"answer": answer})

The workflow and the calling agent travel in headers, with every message and every LLM call.
Delivery is at least once: an agent may see a message again, and a user a result. Messages of an
agent are sent when it returns; a failed attempt sends none.
"""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec

from kairos.cluster import (
    DEAD_REASON,
    DEAD_TOPIC,
    Envelope,
    Value,
    forward_message,
    read_envelope,
    read_value,
    write_message,
)
from kairos.core import (
    IDENTIFIER_PATTERN,
    NAME_PATTERN,
    USER,
    Bus,
    Header,
    InvalidRequest,
    Message,
    Outgoing,
    SetupError,
    Topic,
    inbox_topic,
)
from kairos.workflows import read_chat

log = logging.getLogger(__name__)


class LLM(Protocol):
    async def complete(self, body: Value, headers: Mapping[str, str]) -> Value:
        """Return the OpenAI response to an OpenAI chat-completions body.

        `headers` identify the caller (`X-Kairos-*`) and the call (`X-Request-Id`): a retried call
        keeps its id and increments `X-Kairos-Attempt`. After `X-Kairos-Deadline` the answer is not
        awaited any more.

        Raises:
            KairosError: the call failed; the message has the server's message.
        """


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a workflow. `value` has a text `error` if it failed."""

    workflow_id: str
    app: str
    value: Value


class Task:
    """Message that an agent processes, with the agent's possible actions."""

    def __init__(self, app: "Application", message: Message, llm: LLM) -> None:
        self.envelope = read_envelope(message)
        self.value = read_value(message)
        self._app = app
        self._message = message
        self.outgoing: list[Outgoing] = []  # sent when the agent is done
        self._llm = llm
        self._calls = 0
        self._parent = self.envelope.parent  # the last call that was answered, here or before

    @property
    def deadline(self) -> int | None:
        """Return the workflow's deadline, in µs since the epoch; None: no deadline.

        Later tasks fail.
        """
        return self.envelope.deadline

    def text(self, field: str) -> str:
        """Return a field of the value.

        Raises:
            InvalidRequest: the field is missing, or is not a text.
        """
        text = self.value.get(field)
        if not isinstance(text, str):
            raise InvalidRequest(f"the message's value has no text '{field}'")
        return text

    async def complete(
        self, system: str, user: str, *, max_tokens: int, temperature: float = 0.0, seed: int = 1
    ) -> str:
        """Ask the model under a system prompt, and return its text."""
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        body = {
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
        }
        headers = self._call_headers()
        reply = read_chat(await self._llm.complete(body, headers)).text
        self._parent = headers[Header.REQUEST_ID]
        return reply

    async def send(self, agent: str, value: Value) -> None:
        """Pass the workflow on to another agent of the application, or back to this one.

        The message is sent when the agent is done with this task; if it fails, none of its messages
        is.
        """
        if agent not in self._app.agents:
            known = ", ".join(self._app.agents)
            raise InvalidRequest(f"{self._app.name} has no agent '{agent}'; it has: {known}")
        self._send(self._app.inbox(agent), agent, value)

    async def finish(self, value: Value) -> None:
        """End the workflow with this result for the user."""
        self._send(Topic.RESULTS, USER, value)

    def _send(self, topic: str, agent: str, value: Value) -> None:
        message = forward_message(
            self._message, self.envelope, agent=agent, value=value, parent=self._parent
        )
        self.outgoing.append((topic, message))

    def _call_headers(self) -> dict[str, str]:
        """Return the headers of a call; the same ones when the task is redelivered.

        A call's parent is the call that was answered last before it: of calls that wait for
        several, the one that took longest. Concurrent calls have the same parent.
        """
        self._calls += 1
        envelope = self.envelope
        span = envelope.traceparent.split("-")[2]
        others = {Header.PARENT_ID: self._parent, Header.DEADLINE: envelope.deadline}
        return {
            Header.WORKFLOW_ID: envelope.workflow_id,
            Header.APP: envelope.app,
            Header.AGENT: envelope.agent,
            Header.UPSTREAM: envelope.upstream,
            Header.STARTED_AT: str(envelope.started_at),
            Header.ATTEMPT: str(envelope.attempt),
            **{name: str(each) for name, each in others.items() if each is not None},
            Header.REQUEST_ID: f"{span}-{self._calls}",
            Header.TRACE_PARENT: envelope.traceparent,
        }


Action = Callable[[Task], Awaitable[None]]
Check = Callable[[], Awaitable[None]]


class Application:
    """Agents that work together. `entry` is the agent that receives the user's task."""

    def __init__(self, name: str, *, entry: str) -> None:
        self.name = _named(name)
        self.entry = _named(entry)
        self.agents: dict[str, Action] = {}
        self.checks: dict[str, Check] = {}  # by agent

    def agent(self, name: str, *, check: Check | None = None) -> Callable[[Action], Action]:
        """Register the decorated function as an agent.

        Args:
            name: Its name.
            check: Awaited before the agent takes tasks in a process; raises SetupError if it cannot
                run there.
        """

        def register(action: Action) -> Action:
            if _named(name) in self.agents or name == USER:
                raise SetupError(f"{self.name}: the agent name '{name}' is taken")
            self.agents[name] = action
            if check is not None:
                self.checks[name] = check
            return action

        return register

    def inbox(self, agent: str) -> str:
        return inbox_topic(self.name, agent)


async def submit(
    bus: Bus,
    app: Application,
    value: Value,
    *,
    now_us: int,
    msg_id: str | None = None,
    deadline_us: int | None = None,
) -> str:
    """Start a workflow, and return its id: `msg_id`, or a new one. Its result has the same id.

    Times are µs since the epoch. A task that is due after the deadline ends the workflow with an
    error as the result.

    Raises:
        InvalidRequest: `msg_id` is not a valid identifier.
    """
    workflow_id = secrets.token_hex(16) if msg_id is None else msg_id
    if not re.match(IDENTIFIER_PATTERN, workflow_id):
        raise InvalidRequest("a msg_id has 1 to 128 letters, digits and _ . : @ / + = -")
    envelope = Envelope(
        workflow_id=workflow_id,
        app=app.name,
        agent=app.entry,
        upstream=USER,
        started_at=now_us,
        deadline=deadline_us,
        traceparent=f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01",
    )
    await bus.publish(app.inbox(app.entry), write_message(envelope, value))
    return workflow_id


async def run(
    applications: Iterable[Application],
    bus: Bus,
    llm: LLM,
    *,
    concurrency: int = 64,
    only: Container[str] | None = None,
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> None:
    """Run all agents until cancelled, each on up to `concurrency` workflows at once.

    A task that its agent cannot do, even on the bus's last attempt, ends its workflow with an error
    as the result. So does a task whose deadline has passed: it is not processed.

    Processes that run the same agents share their tasks, and the reports of failures.

    With `only`, these inboxes' agents are run. `now_us` returns µs since the epoch.

    Raises:
        SetupError: an application has no entry, or an agent cannot run here.
    """
    applications = list(applications)
    for app in applications:
        if app.entry not in app.agents:
            raise SetupError(f"{app.name}: there is no agent '{app.entry}' to begin with")
        for agent, check in app.checks.items():
            if only is None or app.inbox(agent) in only:
                await check()
    async with asyncio.TaskGroup() as consumers:
        for app in applications:
            for agent in app.agents:
                inbox, perform = app.inbox(agent), partial(_perform, app, agent, llm, now_us)
                if only is None or inbox in only:
                    consume = bus.consume(inbox, inbox, perform, concurrency=concurrency)
                    consumers.create_task(consume)
            report = partial(_report_failure, app)
            consumers.create_task(
                bus.consume(Topic.DEAD_LETTERS, f"kairos.agents.{app.name}", report)
            )


def read_result(message: Message) -> Result:
    """Read a result. Raises InvalidRequest: the message has another form."""
    envelope = read_envelope(message)
    value = read_value(message)
    return Result(workflow_id=envelope.workflow_id, app=envelope.app, value=value)


async def _perform(
    app: Application, agent: str, llm: LLM, now_us: Callable[[], int], message: Message
) -> Sequence[Outgoing]:
    task = Task(app, message, llm)
    receiver = (task.envelope.app, task.envelope.agent)
    if receiver != (app.name, agent):
        raise InvalidRequest(f"a message for {'.'.join(receiver)} is in {app.inbox(agent)}")
    if task.deadline is not None and task.deadline <= now_us():
        return [_failure(message, task.envelope, f"the deadline passed before {agent} was done")]
    await app.agents[agent](task)
    return task.outgoing


async def _report_failure(app: Application, letter: Message) -> Sequence[Outgoing]:
    if letter.headers.get(DEAD_TOPIC) not in [app.inbox(agent) for agent in app.agents]:
        return ()
    try:
        envelope = read_envelope(letter)
    except InvalidRequest as error:
        log.warning("%s: a dead letter cannot be assigned to a workflow: %s", app.name, error)
        return ()
    reason = letter.headers.get(DEAD_REASON, "for an unknown reason")
    return [_failure(letter, envelope, f"{envelope.agent} failed: {reason}")]


def _failure(message: Message, envelope: Envelope, error: str) -> Outgoing:
    """Return a result with the reason of a workflow's failure."""
    value = {"error": error}
    return Topic.RESULTS, forward_message(
        message, envelope, agent=USER, value=value, parent=envelope.parent
    )


def _named(name: str) -> str:
    if not re.match(NAME_PATTERN, name):
        raise SetupError(f"the name '{name}' must be 1 to 64 letters, digits, _ and -")
    return name
