"""Web pages of other origins that may read answers (CORS), and the answers to OPTIONS."""

import re
from collections.abc import Sequence

from kairos.header_names import RAW, REASON, REQUEST_ID
from kairos.live.frontend.exchange import Exchange

_CALLS, _OTHERS = b"POST, OPTIONS", b"GET, HEAD, POST, PUT, DELETE, OPTIONS"
_KEPT_S = b"600"  # a browser asks again only after that time
_EXPOSED = b"%b, %b, retry-after, " % (RAW[REQUEST_ID], RAW[REASON]) + b", ".join(
    b"x-ratelimit-%b-%b" % (figure, of)
    for figure in (b"limit", b"remaining", b"reset")
    for of in (b"requests", b"tokens")
)
_NAMES = re.compile(rb"[A-Za-z0-9_-]{1,100}(\s*,\s*[A-Za-z0-9_-]{1,100}){0,99}")
ANY_ORIGIN = "*"


class WebPages:
    """Let pages of some origins ask and read answers. Cookies are never asked for or read."""

    def __init__(self, origins: Sequence[str] = ()) -> None:
        """Name the origins, as browsers send them; `*` stands for all."""
        self._origins = {each.lower().encode() for each in origins}
        self._has_any = ANY_ORIGIN in origins

    def open_to_origin(self, exchange: Exchange) -> None:
        """Let the page that asks read the answer, if its origin may."""
        if not self._origins:
            return
        origin = next((value for name, value in exchange.headers if name == b"origin"), None)
        exchange.added = [(b"vary", b"Origin")]
        if origin is not None and (self._has_any or origin.lower() in self._origins):
            exchange.added += [
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", _EXPOSED),
            ]

    def answer_options(self, exchange: Exchange, *, is_call: bool) -> None:
        """Answer without a key: browsers show none before they may ask."""
        methods = _CALLS if is_call else _OTHERS
        headers = [(b"allow", methods)]
        asked = dict(exchange.headers)
        if len(exchange.added) > 1 and b"access-control-request-method" in asked:
            headers.append((b"access-control-allow-methods", methods))
            headers.append((b"access-control-max-age", _KEPT_S))
            names = asked.get(b"access-control-request-headers", b"").strip()
            if _NAMES.fullmatch(names):
                headers.append((b"access-control-allow-headers", names))
            if b"access-control-request-private-network" in asked:
                headers.append((b"access-control-allow-private-network", b"true"))
        exchange.start(204, headers)
        exchange.write(b"", more=False)
