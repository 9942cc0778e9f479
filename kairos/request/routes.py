"""Table of the routes, and how calls of each are treated.

It lists what may pass to an engine, so that an administrative route of a later engine stays closed:
all of `/v1` except routes that load or drop weights or are Kairos's own, and the inference routes
of engines outside `/v1`.
"""

import re
from typing import Literal

import msgspec

from kairos.core import InvalidRequest

Dialect = Literal["openai", "anthropic"]


class RouteRules(msgspec.Struct, frozen=True, kw_only=True):
    """Rules for calls of one route: how they are read, sent, retried and answered."""

    protocol: Dialect = "openai"  # of its errors, its stream of events and its usage
    generates: bool = False  # parameters are checked that no engine takes
    has_messages: bool = False  # must be in its body
    tells_usage: bool = False  # at the end of a stream, when `stream_options` asks
    reads_stream: bool = False  # where a stream ends, and what it says, is known
    is_kept: bool = False  # the answer, which later calls name by its id
    infers: bool = False  # its prompt says who calls, where nothing else does
    is_hot: bool = False  # its calls pass by the application's other routes
    is_retried: bool = True  # an engine keeps nothing of a call that fails: another makes it again
    needs_memory: bool = True  # of an engine, and steps of its model; else it is sent at once


_TEXT = RouteRules(generates=True, reads_stream=True, infers=True, is_hot=True)
_CHAT = msgspec.structs.replace(_TEXT, has_messages=True, tells_usage=True)
_MESSAGES = msgspec.structs.replace(_TEXT, has_messages=True, protocol="anthropic")
_VECTORS = RouteRules(generates=True, is_hot=True)
_ONE_ANSWER = RouteRules()
_COUNTS = RouteRules(needs_memory=False)
_KEPT = RouteRules(needs_memory=False, is_retried=False)  # read, cancelled or deleted
_UNKNOWN = RouteRules(is_retried=False)

ROUTES: dict[str, RouteRules] = {
    "/v1/chat/completions": _CHAT,
    "/v1/completions": msgspec.structs.replace(_TEXT, tells_usage=True),
    "/v1/responses": msgspec.structs.replace(_TEXT, is_kept=True),
    "/v1/messages": _MESSAGES,
    "/v1/embeddings": _VECTORS,
    **dict.fromkeys(("/v1/audio/transcriptions", "/v1/audio/translations"), _ONE_ANSWER),
    **dict.fromkeys(("/v1/audio/speech", "/v1/images/generations"), _ONE_ANSWER),
    **dict.fromkeys(("/v1/images/edits", "/v1/images/variations"), _ONE_ANSWER),
    **dict.fromkeys(
        ("/rerank", "/v1/rerank", "/v2/rerank", "/v2/embed", "/score", "/v1/score"), _ONE_ANSWER
    ),
    **dict.fromkeys(("/pooling", "/v1/pooling", "/classify", "/v1/classify"), _ONE_ANSWER),
    "/v1/moderations": _ONE_ANSWER,
    **dict.fromkeys(("/tokenize", "/v1/tokenize", "/detokenize", "/v1/detokenize"), _COUNTS),
    "/v1/messages/count_tokens": RouteRules(needs_memory=False, protocol="anthropic"),
    "/v1/responses/input_tokens": _COUNTS,
}
CALL_METHODS, OTHER_METHODS = "POST, OPTIONS", "GET, HEAD, POST, PUT, DELETE, OPTIONS"
HOT_ROUTES = {path for path, rules in ROUTES.items() if rules.is_hot}
PASSED_ROUTES = {path for path in ROUTES if not path.startswith("/v1/")}

_CANCEL = re.compile(r"/v1/[a-z_]+/[A-Za-z0-9_.-]+/cancel")
_PASSED_UNDER_V1 = re.compile(r"/v1(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)+")
_NOT_PASSED = re.compile(
    r"/v1/(load_lora_adapter|unload_lora_adapter|models|workflows|agents|files|batches|flows)\b.*"
)
_OWN = re.compile(r"/v1/(models|workflows|agents|files|batches|flows|plans)(/.*)?", re.DOTALL)
_METHODS = {"GET", "POST", "DELETE"}


class RouteRefused(InvalidRequest):
    """The path or method is not served."""

    def __init__(self, status: int, message: str, allowed: str | None = None) -> None:
        super().__init__(message)
        self.status, self.allowed = status, allowed
        self.code = "method_not_allowed" if status == 405 else "not_found"


def rules_of(method: str, path: str) -> RouteRules:
    """Return the rules for a call that `check_passes` accepts."""
    if method != "POST":
        return _KEPT
    found = ROUTES.get(path)
    if found is None:
        return _UNKNOWN if _CANCEL.fullmatch(path) is None else _KEPT
    return found


def is_passed_on(method: str, path: str) -> bool:
    """Return whether a request is for an engine, and not for a route of Kairos's own."""
    if method not in _METHODS:
        return False
    return path in PASSED_ROUTES or (path.startswith("/v1/") and _OWN.fullmatch(path) is None)


def check_passes(method: str, path: str, raw_path: bytes) -> None:
    """Check that a call may pass; only plain paths do, so that no encoding hides a closed one.

    Raises:
        RouteRefused: The path is closed, or the method is not allowed.
    """
    if path in HOT_ROUTES:
        if method != "POST":
            raise RouteRefused(405, f"{path} takes POST, not {method}", CALL_METHODS)
        passes = True
    else:
        passes = path in PASSED_ROUTES or (
            _PASSED_UNDER_V1.fullmatch(path) is not None and not _NOT_PASSED.match(path)
        )
    if not (passes and raw_path == path.encode()):
        raise RouteRefused(404, f"there is no {path[:100]!r} here")
