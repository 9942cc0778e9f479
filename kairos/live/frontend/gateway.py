"""The OpenAI-compatible gateway: a FastAPI application whose hot routes are raw ASGI routes.

FastAPI's own request and response objects cost more than everything that Kairos does with a call,
and its streaming response does not notice a client that leaves before the first byte.
"""

import logging
import re
from collections.abc import Callable
from functools import partial

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from starlette.routing import Route
from starlette.types import ASGIApp

from kairos import __version__
from kairos.errors import (
    KairosError,
    ModelNotFound,
    RequestInFlight,
)
from kairos.header_names import ATTEMPT, RAW
from kairos.live.frontend.health import add_health
from kairos.live.frontend.openai_errors import (
    HOT_ROUTES,
    INTERNAL,
    RouteRefused,
    answer_errors_as_openai_does,
    new_id,
)
from kairos.live.frontend.openapi import description
from kairos.live.proxy.call import STREAMING_ROUTES, Call, FactSink, OnTrouble
from kairos.live.proxy.engine import HttpEngine
from kairos.live.request.access import Access, authorization
from kairos.live.request.bodies import Bodies
from kairos.live.request.body import Body, read_body
from kairos.live.request.budgets import budget_of
from kairos.live.request.client_response import (
    CLIENT,
    ClientResponse,
    Receive,
    Scope,
    Send,
)
from kairos.live.request.deadlines import deadline_of
from kairos.live.request.identity.aliases import Aliases
from kairos.live.request.identity.identity import Headers, Identity, identifier
from kairos.live.request.identity.inference import Inference, UnnamedCall
from kairos.live.request.identity.resolve import identity_of
from kairos.live.request.identity.routes import NamedRoutes, route_of
from kairos.live.request.tokens import PromptTokens
from kairos.model import Request, Sources

logger = logging.getLogger(__name__)


_CHAT = "/v1/chat/completions"
_STREAM_OPTIONS_ROUTES = {_CHAT, "/v1/completions"}
# Passed through to an engine: all of /v1 but what loads or drops weights or is Kairos's own, and
# vLLM's inference routes outside of it. A list of what may pass, not of what may not, so that an
# administrative route which a later engine adds stays closed.
_PASSED_UNDER_V1 = re.compile(r"/v1(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)+")
_NOT_PASSED = re.compile(r"/v1/(load_lora_adapter|unload_lora_adapter|models|workflows|agents)\b.*")
_PASSED = {"/tokenize", "/detokenize", "/rerank", "/v2/rerank", "/score", "/pooling", "/classify"}
_ATTEMPT = RAW[ATTEMPT]


class Gateway:
    """Turns HTTP requests into calls."""

    def __init__(
        self,
        desk: FactSink,
        engine: HttpEngine,
        access: Access,
        prompts: PromptTokens,
        aliases: Aliases,
        inference: Inference | None,
        *,
        served_models: Callable[[], list[str]],
        on_trouble: OnTrouble,
        on_error: Callable[[KairosError], None],
        bodies: Bodies,
    ) -> None:
        self.served_models = served_models
        self._desk = desk
        self._engine = engine
        self._access = access
        self._prompts = prompts
        self._aliases = aliases
        self._inference = inference
        self._on_trouble = on_trouble
        self._on_error = on_error
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Serve one call as an ASGI application, but for the answer, which goes straight to the
        client."""
        headers = dict(scope["headers"])
        exchange = ClientResponse(
            identifier(headers.get(b"x-request-id")) or new_id(), scope[CLIENT]
        )
        try:
            caller = self._access.caller(headers.get(b"authorization"))
            _check_passes(scope)
            content = await self._bodies.read(headers, receive, exchange)
            if content is None:
                return
            body = _read(scope["path"], headers, content)
            route = route_of(scope)
            identity = identity_of(headers, body.told, route, caller, self._aliases)
            tenant = caller.tenant
            asked = None
            if self._inference is not None and scope["path"] in STREAMING_ROUTES:
                asked = self._inference.add(identity, body.prompt, tenant)
            prompt = await self._prompts.estimate(body, tenant, identity.app, identity.agent)
            if self._engine.expects(exchange.request_id):  # another call of that name is in flight
                exchange.request_id = _other_id(exchange.request_id, headers)
            request = self._request(
                exchange.request_id, tenant, identity, body, prompt.tokens, headers
            )
            call = Call(
                request,
                scope,
                body,
                self._desk,
                self._engine,
                self._on_trouble,
                on_counted=partial(self._prompts.learn, prompt),
                on_answer=None if asked is None else partial(self._answered, asked, request.id),
                deadline=request.deadline_at,
                ends_workflow=identity.ends_workflow
                or (identity.workflow_id is None and asked is None),
                tries_again=scope["path"] in HOT_ROUTES,
            )
            await call.run(exchange, scope[CLIENT].leaving)
        except KairosError as error:
            self._on_error(error)
            await exchange.fail(error)
        except Exception:  # the last resort: the client gets an answer, the log the traceback
            logger.exception("call %s met an error of Kairos's own", exchange.request_id)
            self._on_error(INTERNAL)
            await exchange.fail(INTERNAL)
        finally:
            self._bodies.end(exchange)

    def _answered(
        self, asked: UnnamedCall, request_id: str, answer: bytes | bytearray, *, streamed: bool
    ) -> None:
        if self._inference is not None:
            self._inference.answered(asked, request_id, answer, streamed=streamed)

    def _request(
        self,
        request_id: str,
        tenant: str,
        identity: Identity,
        body: Body,
        prompt_tokens: int,
        headers: Headers,
    ) -> Request:
        now = self._desk.now()
        return Request(
            id=request_id,
            tenant=tenant,
            workflow_id=identity.workflow_id or request_id,
            app=identity.app,
            agent=identity.agent,
            upstream=identity.upstream,
            parent_ids=identity.parent_ids,
            sources=Sources(**identity.sources),
            attempt=identity.attempt,
            deadline_at=deadline_of(headers, now, streams=body.stream),
            budget=budget_of(headers),
            model=body.model,
            workflow_started_at=min(identity.started_at or now, now),
            arrived_at=now,
            prompt_tokens=prompt_tokens,
            completion_tokens=body.completion_tokens,
            completion_limit=body.completion_limit,
            prefix=body.prefix,
            prefix_units=body.prefix_units,
        )


def build_app(
    gateway: Gateway,
    access: Access,
    metrics: Callable[[], bytes],
    add_insight: Callable[[FastAPI], None],
) -> ASGIApp:
    """The application that clients reach. `add_insight` adds the routes to look into workflows."""
    app = FastAPI(
        title="Kairos", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.openapi = description  # type: ignore[method-assign]

    # Well is a gateway while at least one instance can take requests.
    add_health(app, lambda: bool(gateway.served_models()), metrics)
    add_models(app, access, gateway.served_models)
    add_insight(app)
    for path in ("/v1/{rest:path}", *sorted(_PASSED)):
        app.router.routes.append(Route(path, gateway, methods=["GET", "POST", "DELETE"]))
    answer_errors_as_openai_does(app)
    return NamedRoutes(HotRoutes(gateway, app))


class HotRoutes:
    """Calls go straight to the gateway; all else to the application, through its middleware."""

    def __init__(self, gateway: Gateway, app: ASGIApp) -> None:
        self._gateway, self._app = gateway, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_hot = scope["type"] == "http" and scope["path"] in HOT_ROUTES
        await (self._gateway if is_hot else self._app)(scope, receive, send)


def add_models(app: FastAPI, access: Access, served_models: Callable[[], list[str]]) -> None:
    @app.get("/v1/models")
    async def models(request: HttpRequest) -> dict[str, object]:
        access.tenant(authorization(request))
        return {"object": "list", "data": [_model(name) for name in served_models()]}

    @app.get("/v1/models/{name:path}")
    async def model(request: HttpRequest, name: str) -> dict[str, object]:
        access.tenant(authorization(request))
        if name not in served_models():
            raise ModelNotFound(name, served_models())
        return _model(name)


def _read(path: str, headers: dict[bytes, bytes], content: bytes) -> Body:
    known = path in HOT_ROUTES
    if known or headers.get(b"content-type", b"").startswith(b"application/json"):
        if not content and not known:
            return Body(content)
        return read_body(content, chat=path == _CHAT, streams_usage=path in _STREAM_OPTIONS_ROUTES)
    return Body(content, prompt_tokens=max(1, len(content) // 4))


def _check_passes(scope: Scope) -> None:
    """Only plain paths that may pass, so that no encoding of a closed one slips through."""
    path = scope["path"]
    if path in HOT_ROUTES and scope["method"] != "POST":
        raise RouteRefused(405, f"{path} takes POST, not {scope['method']}")
    plain = scope.get("raw_path", path.encode()) == path.encode()
    passes = path in _PASSED or (_PASSED_UNDER_V1.fullmatch(path) and not _NOT_PASSED.match(path))
    if not (plain and passes):
        raise RouteRefused(404, f"there is no {path[:100]!r} here")


def _other_id(taken: str, headers: dict[bytes, bytes]) -> str:
    """Raises RequestInFlight: the client counts attempts, so it means that very call."""
    if _ATTEMPT in headers:
        raise RequestInFlight(taken)
    return new_id()


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "kairos"}
