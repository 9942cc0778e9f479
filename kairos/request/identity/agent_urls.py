"""Base URLs that name an agent: `/wf/{workflow}`, `/app/{app}` and `/agent/{agent}` before `/v1`.

Any of them, each once. They serve clients that can only set a base URL.
"""

from collections.abc import Mapping

from kairos.request.client_response import ASGIApp, Receive, Scope, Send
from kairos.request.identity.identity import Field, identifier_of

Route = Mapping[Field, str]

_FIELDS: dict[str, Field] = {"wf": "workflow_id", "app": "app", "agent": "agent"}
_KEY = "kairos.route"  # in a scope's state
_STARTS = tuple(f"/{each}/" for each in _FIELDS)
_NO_NAMES: Route = {}


def names_in(path: str, raw_path: bytes) -> tuple[Route, str]:
    """Return the names at the beginning of a path, and the rest; without names, the whole path.

    `raw_path` is the path as sent; in any other spelling it has no names.
    """
    if not path.startswith(_STARTS) or raw_path != path.encode():
        return _NO_NAMES, path
    route: dict[Field, str] = {}
    parts = path.split("/", 2 * len(_FIELDS) + 1)[1:]
    while len(parts) > 2 and parts[0] in _FIELDS:
        kind, value, *parts = parts
        if _FIELDS[kind] in route or identifier_of(value) is None:
            return _NO_NAMES, path
        route[_FIELDS[kind]] = value
    return route, f"/{'/'.join(parts)}"


class NamedRoutes:
    """Middleware that strips the names from the path of a request and stores them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            route, path = names_in(scope["path"], scope["raw_path"])
            if route:
                state = {**scope.get("state", {}), _KEY: route}
                scope = {**scope, "path": path, "raw_path": path.encode(), "state": state}
        await self._app(scope, receive, send)


def route_of(scope: Mapping[str, object]) -> Route:
    """Return the names that were in the path."""
    state = scope.get("state")
    return state.get(_KEY, _NO_NAMES) if isinstance(state, dict) else _NO_NAMES
