"""Hooks for outgoing calls: `send` of httpx and httpx2, and aiohttp's requests."""

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from kairos_client import settings, trouble
from kairos_client.headers import headers

_DOING = "naming who makes a call"


def wrap_httpx(module: ModuleType) -> None:
    """Wrap `send` of httpx or httpx2."""
    client, async_client = module.Client, module.AsyncClient
    send, async_send = client.send, async_client.send

    @wraps(send)
    def named_send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        name_call(request.url, request.headers)
        return send(self, request, *args, **kwargs)

    @wraps(async_send)
    async def named_async_send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        name_call(request.url, request.headers)
        return await async_send(self, request, *args, **kwargs)

    client.send, async_client.send = named_send, named_async_send


def wrap_aiohttp(module: ModuleType) -> None:
    session = module.ClientSession
    request = session._request

    @wraps(request)
    async def named_request(self: Any, method: str, url: Any, **kwargs: Any) -> Any:
        kwargs["headers"] = _with_names(self, url, kwargs.get("headers"))
        return await request(self, method, url, **kwargs)

    session._request = named_request


def _with_names(session: Any, url: Any, given: Any) -> Any:
    try:
        from multidict import CIMultiDict

        named = CIMultiDict(given or {})
        name_call(session._build_url(url), named)
    except Exception as error:  # noqa: BLE001
        trouble.met(_DOING, error)
        return given
    return named


def name_call(url: Any, to: Any) -> None:
    """Add the headers to a call if it is sent to Kairos."""
    try:
        kairos = settings.origin(settings.base_url() or "")
        if kairos is not None and settings.origin(str(url)) == kairos:
            given = {name.lower(): value for name, value in to.items()}
            for name, value in headers(given).items():
                to[name] = value
    except Exception as error:  # noqa: BLE001 - the call is sent without
        trouble.met(_DOING, error)


HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "httpx": wrap_httpx,
    "httpx2": wrap_httpx,
    "aiohttp": wrap_aiohttp,
}
