"""Invocations of this process: their admission, the headers of their calls, and their end.

The plan of an invoked flow is declared in advance to the process that decides (`DeclaredApps`).
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from functools import partial

import msgspec

from kairos.core import (
    RAW_HEADERS,
    SECOND,
    DeadlinePassed,
    Header,
    KairosError,
    PlanDeclared,
    SharedLru,
    WorkflowEnded,
)
from kairos.gateway import Gateway, InnerGateway
from kairos.host import TenantThreads
from kairos.proxy import Hear
from kairos.request import Caller, Headers, budget_of, deadline_of, declared_identity
from kairos.settings import FlowSettings
from kairos.workflows.compile.columns import Columns
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.compile.planned_work import plan_work
from kairos.workflows.declare.functions import Functions
from kairos.workflows.execute.facts import FlowFact
from kairos.workflows.retrieve.flow_processors import ProcessorService
from kairos.workflows.run.calls import RunCalls
from kairos.workflows.run.function_batches import FunctionBatches
from kairos.workflows.serve.flow_llm import FlowLLM
from kairos.workflows.serve.flow_store import FlowStore, InvocationCounts
from kairos.workflows.serve.invocation import (
    FUNCTIONS,
    LIMITS,
    FlowResult,
    Invocation,
    OperatorFinished,
)
from kairos.workflows.serve.plans import FlowPlans, spoken_by
from kairos.workflows.serve.prefix_keeping import PrefixKeeping
from kairos.workflows.serve.records import FlowsBusy
from kairos.workflows.serve.shared_results import InvocationSharing, SharedResults

# Threads that one tenant may use: fewer than there are, so that other tenants find one. A flow of
# many operators takes seconds to plan.
_PLANS_AT_ONCE, _COMPUTING_AT_ONCE = 1, 2

_NO_PREFIXES = msgspec.structs.replace(LIMITS, caches_prefixes=False)

# Headers that calls take over from their invocation.
_PASSED_ON = tuple(
    RAW_HEADERS[name]
    for name in (
        Header.STARTED_AT,
        Header.BUDGET_CALLS,
        Header.BUDGET_TOKENS,
        Header.BUDGET_MS,
        Header.TRACE_PARENT,
        Header.BAGGAGE,
    )
)


class InvocationAsked(msgspec.Struct, frozen=True):
    """Request for an invocation. `headers`: of the HTTP request."""

    caller: Caller
    flow: str
    headers: Headers
    row: Callable[[Columns], Mapping[str, object]]  # for a flow that needs these columns
    settings: Mapping[str, object]
    streams: bool = False
    is_large: bool = False  # its row is made in a thread


class ReadyInvocation(msgspec.Struct, frozen=True):
    """Invocation that passed all checks."""

    id: str
    caller: Caller
    flow: str
    digest: str  # of the flow's text
    headers: Headers
    plan: Plan
    row: Mapping[str, object]
    app: str
    workflow_id: str
    ends_workflow: bool
    service_class: str
    deadline_at: int | None  # µs since the epoch


class Invoking:
    """Admits and runs invocations, for every route."""

    def __init__(
        self,
        store: FlowStore,
        counts: InvocationCounts,
        gateway: Gateway,
        functions: Functions,
        processors: ProcessorService | None,
        settings: FlowSettings,
        threads: Executor,
    ) -> None:
        """`threads`: where flows are planned, and compute."""
        self._processors, self._counts = processors, counts
        of_any = None if processors is None else processors.of()
        planning = TenantThreads(threads, _PLANS_AT_ONCE)
        shares = settings.share_s > 0
        self.plans = FlowPlans(
            functions,
            of_any,
            planning,
            shares=shares,
            batches=settings.batches,
            without=settings.without,
        )
        self.store = store
        self._shared = SharedResults(settings.share_s) if shares else None
        self._threads = TenantThreads(threads, _COMPUTING_AT_ONCE)
        self.beside = gateway.readers.run  # what a large body says
        self._functions, self._most = functions, settings.max_running
        self._model, self._batches = settings.model, FunctionBatches()
        self._gateway, self._inner = gateway, InnerGateway(gateway)
        self._keeping = PrefixKeeping(gateway, self._inner)
        self._declared = DeclaredApps(gateway.sink.feed)
        self._running: dict[str, int] = {}  # by tenant

    async def ready(self, asked: InvocationAsked) -> ReadyInvocation:
        """Check a request.

        Raises NoSuchFlow, FlowRefused, InvalidRequest, FlowsBusy, ClassNotAllowed.
        """
        caller, headers = asked.caller, asked.headers
        now, classes = self._gateway.sink.now(), self._gateway.classes
        service_class = classes.of(headers, caller)
        named = deadline_of(headers, now, streams=asked.streams)
        budget_of(headers)  # raises if the budget is invalid
        who = declared_identity(headers)
        self._check_room(caller.tenant)
        record = await asyncio.to_thread(self.store.find, caller.tenant, asked.flow)
        plan = await self.plans.plan(caller.tenant, record, asked.settings)
        make = partial(asked.row, plan.table)
        row = await self.beside(caller.tenant, make) if asked.is_large else make()
        own_id = f"flow-{secrets.token_hex(12)}"
        return ReadyInvocation(
            id=own_id,
            caller=caller,
            flow=asked.flow,
            digest=record.digest,
            headers=headers,
            plan=plan,
            row=row,
            app=caller.app or who.app or asked.flow,
            workflow_id=who.workflow_id or own_id,
            ends_workflow=who.workflow_id is None,
            service_class=service_class,
            deadline_at=classes.deadline(service_class, named, now),
        )

    async def run(
        self,
        ready: ReadyInvocation,
        on_finished: Callable[[OperatorFinished], None],
        hear: Hear | None = None,
    ) -> FlowResult:
        """Run an invocation to its outputs. Its calls are cancelled with it.

        `hear`: receives an operator's answer as it streams, if that answer is the only output.

        Raises:
            FlowsBusy: the tenant has too many; it is not begun.
            DeadlinePassed: the client's deadline passed.
            KairosError: the flow failed.
        """
        caller, processors = ready.caller, None
        # An invocation does not see the other load of the engines. So its speculative calls run at
        # best-effort priority.
        ahead_class = self._gateway.classes.spare(caller)
        if self._processors is not None:
            processors = self._processors.of(
                began_at=self._gateway.sink.now(), tenant=caller.tenant
            )
        with self._one_of(caller.tenant), self._counted(ready), self._let_in(ready):
            now = self._gateway.sink.now()
            self._declared.tell(caller.tenant, ready.app, ready.digest, ready.plan, now)
            said = _said(ready.headers, ready.deadline_at)
            speaker = None if hear is None else spoken_by(ready.plan)
            heard = {} if hear is None or speaker is None else {speaker: hear}
            model = self._usual_model()
            share = None
            if self._shared is not None:
                of = caller.tenant, model, ready.service_class
                share = partial(InvocationSharing, self._shared, of, heard=speaker)
            if ready.plan.static_prefixes and self._gateway.caches_prefixes():
                on_finished = self._keeping.listener(
                    caller, ready.app, model, ready.plan, on_finished
                )
            llm = FlowLLM(self._inner, ready.id, ready.workflow_id, said, model, heard)

            def make_calls(tell: Callable[[FlowFact], None]) -> RunCalls:
                return RunCalls(
                    ready.id,
                    ready.app,
                    llm,
                    self._functions,
                    processors,
                    tell,
                    service_class=ready.service_class,
                    ahead_class=ahead_class,
                    threads=FUNCTIONS,
                    batches=self._batches,
                    tenant=caller.tenant,
                    began_at=now,
                )

            invocation = Invocation(
                ready.plan,
                ready.row,
                make_calls,
                llm.why_failed,
                on_finished,
                self._threads,
                caller.tenant,
                share,
                _NO_PREFIXES if not self._gateway.caches_prefixes() else LIMITS,
            )
            return await self._in_time(invocation, ready.deadline_at)

    async def _in_time(self, invocation: Invocation, deadline_at: int | None) -> FlowResult:
        if deadline_at is None:
            return await invocation.run()
        left_s = (deadline_at - self._gateway.sink.now()) / SECOND
        if left_s <= 0:
            raise DeadlinePassed
        try:
            async with asyncio.timeout(left_s):
                return await invocation.run()
        except TimeoutError:
            raise DeadlinePassed from None

    def _usual_model(self) -> str | None:
        """Return the model of operators that name none; None: the engine's own."""
        served = self._gateway.served_models()
        return served[0] if self._model is None and len(served) == 1 else self._model

    def _check_room(self, tenant: str) -> None:
        """Raise FlowsBusy if the tenant runs as many invocations as it may."""
        if (running := self._running.get(tenant, 0)) >= self._most:
            raise FlowsBusy(running)

    @contextlib.contextmanager
    def _one_of(self, tenant: str) -> Iterator[None]:
        """Count an invocation as running. Raises FlowsBusy."""
        self._check_room(tenant)
        self._running[tenant] = self._running.get(tenant, 0) + 1
        try:
            yield
        finally:
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant]

    @contextlib.contextmanager
    def _counted(self, ready: ReadyInvocation) -> Iterator[None]:
        """Count the invocation by its outcome."""
        began_s, outcome = time.monotonic(), "failed"
        try:
            yield
            outcome = "finished"
        except DeadlinePassed:
            outcome = "expired"
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            took_s = time.monotonic() - began_s
            self._counts.add(ready.caller.tenant, ready.flow, outcome, took_s)

    @contextlib.contextmanager
    def _let_in(self, ready: ReadyInvocation) -> Iterator[None]:
        """Admit its calls to the gateway, as a workflow that ends with the invocation."""
        self._inner.callers.add(ready.id, ready.caller)
        try:
            yield
        finally:
            self._inner.callers.remove(ready.id)
            if ready.ends_workflow:
                ended = WorkflowEnded(ready.caller.tenant, ready.workflow_id)
                self._gateway.sink.feed(ended)


def _said(headers: Headers, deadline_at: int | None) -> dict[bytes, bytes]:
    said = {name: headers[name] for name in _PASSED_ON if name in headers}
    if deadline_at is not None:
        said[RAW_HEADERS[Header.DEADLINE]] = b"%d" % deadline_at
    return said


logger = logging.getLogger(__name__)

_APPS = 1_000
_AGAIN_US = 60 * SECOND  # the process that decides may have been restarted since


class DeclaredApps:
    """Record of the plans declared recently, for all tenants.

    A plan is declared once in a while, not with each invocation.
    """

    def __init__(self, feed: Callable[[PlanDeclared], None]) -> None:
        self._feed = feed
        self._told: SharedLru[tuple[str, str], tuple[str, int]] = SharedLru(_APPS)

    def tell(self, tenant: str, app: str, flow: str, plan: Plan, at: int) -> None:
        """Declare that the app's workflows will follow the plan.

        `flow`: digest of the flow; a plan for other settings of the same flow is declared only
        after a minute. `at`: µs since the epoch. A failed declaration is retried after a minute;
        invocations work without it.
        """
        key = tenant, app
        before = self._told.get(key)
        if before is not None and before[0] == flow and at < before[1] + _AGAIN_US:
            return
        self._told.put(tenant, key, (flow, at))
        work = plan_work(plan)
        if work is None:
            return
        try:
            self._feed(PlanDeclared(tenant, app, work))
        except KairosError as error:
            logger.debug("the plan of %s was not declared: %s", app, error)
