"""Which requests pass through to an engine."""

import re

from kairos.live.frontend.openai_errors import HOT_ROUTES, RouteRefused
from kairos.live.proxy.asked import Asked

# Passed through to an engine: all of /v1 but what loads or drops weights or is Kairos's own, and
# vLLM's inference routes outside of it. A list of what may pass, not of what may not, so that an
# administrative route which a later engine adds stays closed.
_PASSED_UNDER_V1 = re.compile(r"/v1(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)+")
_NOT_PASSED = re.compile(
    r"/v1/(load_lora_adapter|unload_lora_adapter|models|workflows|agents|files|batches|flows)\b.*"
)
PASSED = {"/tokenize", "/detokenize", "/rerank", "/v2/rerank", "/score", "/pooling", "/classify"}


_OWN = re.compile(r"/v1/(models|workflows|agents|files|batches|flows|plans)(/.*)?", re.DOTALL)
_METHODS = {"GET", "POST", "DELETE"}


def is_passed_on(method: str, path: str) -> bool:
    """Return whether no route of Kairos's own can be meant, so that it is passed on or refused."""
    if method not in _METHODS:
        return False
    return path in PASSED or (path.startswith("/v1/") and _OWN.fullmatch(path) is None)


def check_passes(asked: Asked, raw_path: bytes) -> None:
    """Only plain paths that may pass, so that no encoding of a closed one slips through."""
    path = asked.path
    if path in HOT_ROUTES:
        if asked.method != "POST":
            raise RouteRefused(405, f"{path} takes POST, not {asked.method}")
        passes = True
    else:
        passes = path in PASSED or (
            _PASSED_UNDER_V1.fullmatch(path) is not None and not _NOT_PASSED.match(path)
        )
    if not (passes and raw_path == path.encode()):
        raise RouteRefused(404, f"there is no {path[:100]!r} here")
