"""The OpenAI-compatible gateway: HTTP requests become calls.

What the balancer handles is a `Request`, made of the HTTP request, its caller and its identity.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from kairos.core import (
    RAW_HEADERS,
    FactSink,
    Header,
    KairosError,
    Request,
    RequestIdTaken,
    RequestInFlight,
    Sources,
)
from kairos.gateway.api.models import OwnModels
from kairos.gateway.auth.access import Callers, ServiceClasses, credential_of
from kairos.gateway.server.exchange import Asking
from kairos.gateway.server.openai_errors import INTERNAL_ERROR, new_id
from kairos.host import TenantThreads
from kairos.observe import OnError, Tracing
from kairos.proxy import Asked, Call, HttpEngine, OnTrouble
from kairos.request import (
    BESIDE_BYTES,
    HOT_ROUTES,
    Aliases,
    Bodies,
    Body,
    Caller,
    ClientResponse,
    Estimate,
    Identity,
    Inference,
    KeysComing,
    PromptTokens,
    Route,
    UnnamedCall,
    Upload,
    body_of,
    budget_of,
    check_passes,
    check_response_path,
    deadline_of,
    identity_of,
    is_passed_on,
    names_in,
    patience_of,
    rules_of,
    valid_identifier,
)
from kairos.settings import Settings, classes_by_name

logger = logging.getLogger(__name__)

_ATTEMPT, _REQUEST_ID = RAW_HEADERS[Header.ATTEMPT], RAW_HEADERS[Header.REQUEST_ID]
_NO_NAMES: Route = {}  # in a path
T = TypeVar("T")
READERS = 2  # threads that read large bodies; one body of a tenant at once


class Gateway:
    """The gateway: turns HTTP requests into calls."""

    targets: Mapping[bytes, str] = {path.encode(): path for path in HOT_ROUTES}

    def __init__(
        self,
        settings: Settings,
        sink: FactSink,
        engine: HttpEngine,
        access: Callers,
        prompts: PromptTokens,
        bodies: Bodies,
        *,
        served_models: Callable[[], list[str]],
        on_trouble: OnTrouble,
        on_error: OnError,
        tracing: Tracing | None = None,
        caches_prefixes: Callable[[], bool] = lambda: True,
    ) -> None:
        """Create the gateway.

        `caches_prefixes` returns whether an engine has a prefix cache, as far as this process
        knows.
        """
        self.served_models, self.caches_prefixes = served_models, caches_prefixes
        self.sink, self.engine, self.access, self.prompts = sink, engine, access, prompts
        self.on_trouble, self.on_error, self.bodies = on_trouble, on_error, bodies
        self.tracing, self.pace = tracing, engine.pace
        self.aliases = Aliases(settings.identity)
        self.inference = Inference() if settings.infer else None
        self.classes = ServiceClasses(classes_by_name(settings.service_class))
        self.salts_caches = settings.cache_salt  # tenants do not share engines' prefix caches
        self.own_models: OwnModels | None = None  # in addition to those that engines serve
        threads = ThreadPoolExecutor(READERS, thread_name_prefix="kairos-body")
        self.readers = TenantThreads(threads, most=1)

    def takes(self, exchange: Asking) -> bool:
        """Return whether the request is a call, and not for a route of Kairos's own."""
        if exchange.path in HOT_ROUTES:
            return True
        path = names_in(exchange.path, exchange.raw_path)[1]
        return path in HOT_ROUTES or is_passed_on(_method_of(exchange), path)

    def is_hot(self, exchange: Asking) -> bool:
        """Return whether the request's path takes calls alone."""
        return names_in(exchange.path, exchange.raw_path)[1] in HOT_ROUTES

    def caller_of(self, exchange: Asking) -> str:
        """Return the caller's name for shares: see `Access.known_as`."""
        headers = dict(exchange.headers)
        return self.access.known_as(credential_of(headers), exchange.caller)

    def start_call(self, exchange: Asking) -> None:
        """Start a call for the request. Never raises."""
        method, path, raw_path, names = exchange.method, exchange.path, exchange.raw_path, _NO_NAMES
        if path not in HOT_ROUTES:
            names, path = names_in(path, raw_path)
            if path not in HOT_ROUTES:
                method = _method_of(exchange)
            if names:
                raw_path = path.encode()
        asked = Asked(method, path, exchange.query, dict(exchange.headers))
        GatewayCall(self, exchange, asked, raw_path, names).begin_reading()

    def error_for_client(
        self, error: Exception, response: ClientResponse, caller: Caller | None
    ) -> KairosError:
        """Return the error for the client, after logging and counting it."""
        if not isinstance(error, KairosError):  # the last resort
            message = "call %s met an error of Kairos's own"
            logger.error(message, response.request_id, exc_info=error)
            error = INTERNAL_ERROR
        self.on_error(error, caller, response.caller)
        return error


def _method_of(exchange: Asking) -> str:
    """Return the method: the exchange leaves out the body that HEAD does not want."""
    return "GET" if exchange.method == "HEAD" else exchange.method


class GatewayCall:
    """A request for a call, from its head to the end of its answer.

    It is a `BodyTaker`, an `Answering`, and the `Owner` of the call.
    """

    wants_answer: bool

    __slots__ = (
        "_arrived",
        "_asked",
        "_by_inference",
        "_caller",
        "_coming",
        "_exchange",
        "_gateway",
        "_is_over",
        "_names",
        "_prompt",
        "_raw_path",
        "_response",
        "_rules",
        "_upload",
        "wants_answer",
    )

    def __init__(
        self, gateway: Gateway, exchange: Asking, asked: Asked, raw_path: bytes, names: Route
    ) -> None:
        self._gateway, self._exchange, self._asked = gateway, exchange, asked
        self._raw_path, self._names = raw_path, names
        self._is_over = False
        self._arrived: tuple[Body, Identity] | None = None  # if it has the id from its client
        self._coming: asyncio.Task[Any] | None = None
        request_id = valid_identifier(asked.headers.get(_REQUEST_ID)) or new_id()
        self._response = ClientResponse(request_id, exchange, exchange.caller)
        self._rules = rules_of(asked.method, asked.path)
        self._response.protocol = self._rules.protocol
        self._caller: Caller | None = None
        self._upload: Upload | None = None
        self._prompt: Estimate | None = None
        self._by_inference: UnnamedCall | None = None
        self.wants_answer = False

    def begin_reading(self) -> None:
        gateway, exchange, asked = self._gateway, self._exchange, self._asked
        if exchange.has_left:
            self.ended(None)
            return
        exchange.answering = self
        try:
            self._caller = caller = gateway.access.caller(credential_of(asked.headers))
            if not gateway.access.is_open:
                exchange.caller = self._response.caller = caller.tenant
            check_passes(asked.method, asked.path, self._raw_path)
            if not gateway.access.is_open:
                check_response_path(asked.path, caller.tenant)
            self._upload = gateway.bodies.read_body(asked.headers, exchange, self._response, self)
        except KeysComing as awaited:  # the caller is known after that
            awaited.coming.add_done_callback(self._begin_reading_again)
        except Exception as error:  # noqa: BLE001 - it is answered, and logged where it is Kairos's
            self.ended(error)

    def _begin_reading_again(self, _: object) -> None:
        self._gateway.pace.begin_step(self._exchange.caller, self.begin_reading)

    def on_body(self, content: bytes) -> None:
        self._upload = None
        assert self._caller is not None
        tenant = self._caller.tenant
        salt = tenant if self._gateway.salts_caches else None
        keeper = None if self._gateway.access.is_open else tenant
        read = partial(body_of, self._rules, self._asked.headers, content, salt, keeper)
        if len(content) > BESIDE_BYTES:
            beside = self._gateway.readers.run(tenant, read)
            self._go_on_after(beside, partial(self._on_parsed_body, content))
            return
        try:
            self._on_parsed_body(content, read())
        except Exception as error:  # noqa: BLE001 - it is answered, and logged if it is Kairos's
            self.ended(error)

    def _go_on_after(self, awaited: Coroutine[None, None, T], step: Callable[[T], None]) -> None:
        """Take a step with the result of a coroutine, unless the call ends before."""

        def come(task: asyncio.Task[T]) -> None:
            self._coming = None
            if self._is_over or task.cancelled():
                return
            failed = task.exception()
            if isinstance(failed, Exception):  # not raised: this frame would keep the task alive
                self.ended(failed)
                return
            try:
                step(task.result())
            except Exception as error:  # noqa: BLE001 - as above
                self.ended(error)

        coming = asyncio.create_task(awaited)
        self._coming = coming
        coming.add_done_callback(come)

    def _on_parsed_body(self, content: bytes, body: Body) -> None:
        """Handle the parsed body. Raises KairosError: The request is refused."""
        gateway, asked, caller = self._gateway, self._asked, self._caller
        assert caller is not None
        own = gateway.own_models
        if own is not None and body.model is not None and own.takes(body.model):
            own.begin(asked, content, caller, self._response, self)
            return
        identity = identity_of(asked.headers, body.told, self._names, caller, gateway.aliases)
        tenant = caller.tenant
        if gateway.inference is not None and self._rules.infers:
            self._by_inference = gateway.inference.infer_fields(identity, body.prompt, tenant)
            self.wants_answer = self._by_inference is not None
        gateway.aliases.add_caller(identity, asked.headers, tenant)
        prompts = gateway.prompts
        parts = body, tenant, identity.app, identity.agent
        if prompts.counts(body):
            self._go_on_after(prompts.estimate(*parts), partial(self._arrive, body, identity))
        else:
            self._arrive(body, identity, prompts.estimate_at_once(*parts))

    def _arrive(self, body: Body, identity: Identity, prompt: Estimate) -> None:
        """Create the call and start it. Raises KairosError: The request is refused."""
        gateway, asked, response = self._gateway, self._asked, self._response
        self._prompt = prompt
        assert self._caller is not None
        taken_by = gateway.engine.calls.tenant_of(response.request_id)
        if taken_by is not None:  # another call with that id is in flight
            if taken_by == self._caller.tenant and _ATTEMPT in asked.headers:
                raise RequestInFlight(response.request_id)  # a retry of that very call
            response.request_id = new_id()
        named = self._asked.headers.get(_REQUEST_ID) == response.request_id.encode()
        self._arrived = (body, identity) if named else None
        rules, sink = self._rules, gateway.sink
        now = sink.now()
        request = self._request(self._caller, body, identity, prompt, now)
        if not rules.needs_memory:
            sink = gateway.engine.at_once.beside(sink)
        elif gateway.tracing is not None:
            request, sink = gateway.tracing.follow(request, asked, sink, streams=body.stream)
        call = Call(
            request,
            asked,
            body,
            response,
            sink,
            gateway.engine,
            self,
            gateway.on_trouble,
            ends_workflow=identity.ends_workflow
            or (rules.needs_memory and identity.workflow_id is None and self._by_inference is None),
            tries_again=rules.is_retried or not rules.needs_memory,
            patience_s=patience_of(asked.headers, now),
        )
        call.begin(request.deadline_at)

    def _request(
        self, caller: Caller, body: Body, identity: Identity, prompt: Estimate, now: int
    ) -> Request:
        """Return the call's request.

        Raises KairosError: A header is invalid, or the caller may not use the class of service.
        """
        headers, request_id = self._asked.headers, self._response.request_id
        classes = self._gateway.classes
        service_class = classes.of(headers, caller)
        deadline_at = deadline_of(headers, now, streams=body.stream)
        return Request(
            id=request_id,
            tenant=caller.tenant,
            workflow_id=identity.workflow_id or request_id,
            app=identity.app,
            agent=identity.agent,
            upstream=identity.upstream,
            parent_ids=identity.parent_ids,
            sources=Sources(**identity.sources),
            attempt=identity.attempt,
            key=caller.key,
            service_class=service_class,
            deadline_at=classes.deadline(service_class, deadline_at, now),
            budget=budget_of(headers),
            model=body.model,
            workflow_started_at=min(identity.started_at or now, now),
            arrived_at=now,
            prompt_tokens=prompt.tokens,
            least_prompt_tokens=prompt.least,
            completion_tokens=body.completion_tokens,
            completion_limit=body.completion_limit,
            sequences=body.sequences,
            prefix=body.prefix,
            prefix_units=body.prefix_units,
        )

    def _is_id_taken(self, error: Exception) -> bool:
        """Return whether another process has a call with the id, by the error: see `_arrive`."""
        if not isinstance(error, KairosError):
            return False
        is_attempt = _ATTEMPT in self._asked.headers
        return error.code == RequestIdTaken.code or (
            error.code == RequestInFlight.code and not is_attempt
        )

    def _arrive_anew(self, body: Body, identity: Identity) -> None:
        """Arrive again, under a fresh id."""
        self._response.request_id = new_id()
        assert self._prompt is not None
        try:
            self._arrive(body, identity, self._prompt)
        except Exception as error:  # noqa: BLE001 - as above
            self.ended(error)

    def on_body_refused(self, error: KairosError) -> None:
        self.ended(error)

    def client_left(self) -> None:
        """See `Answering`. The call has not arrived yet."""
        self.ended(None)

    def client_drained(self) -> None:
        """See `Answering`. Nothing has been written yet."""

    def counted(self, prompt_tokens: int) -> None:
        if self._prompt is not None:
            self._gateway.prompts.learn(self._prompt, prompt_tokens)

    def answered(self, answer: bytes | bytearray, *, streamed: bool) -> None:
        inference, asked = self._gateway.inference, self._by_inference
        if inference is not None and asked is not None:
            inference.remember_answer(asked, self._response.request_id, answer, streamed=streamed)

    def ended(self, error: Exception | None) -> None:
        if self._is_over:
            return
        if self._arrived is not None and error is not None and self._is_id_taken(error):
            self._arrive_anew(*self._arrived)
            return
        self._is_over = True
        response = self._response
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.stop_reading()
        if self._coming is not None:
            self._coming.cancel()
        self._exchange.answering = None
        self._gateway.bodies.release_bytes(response)
        if error is not None:
            response.fail(self._gateway.error_for_client(error, response, self._caller))
