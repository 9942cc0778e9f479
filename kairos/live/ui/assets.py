"""The page's files, and the headers under which a browser takes them and nothing else.

They are read when the process starts, and are served by exact name: no path of a request ever
leads to a file. They are plain HTML, CSS and JavaScript modules, as a browser reads them: nothing
is built, and nothing is loaded from another host.
"""

from collections.abc import Mapping
from importlib.resources import files

import msgspec
from starlette.responses import Response

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# Whatever else reaches the page is text: no script or style in it runs, and nothing leads away.
HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Asset(msgspec.Struct, frozen=True):
    content: bytes
    media_type: str

    def response(self) -> Response:
        return Response(self.content, media_type=self.media_type, headers=dict(HEADERS))


def json_response(content: object) -> Response:
    encoded = msgspec.json.encode(content)
    return Response(encoded, media_type="application/json", headers=dict(HEADERS))


def read_assets() -> dict[str, Asset]:
    """By name."""
    found = {}
    for each in files("kairos.live.ui").joinpath("static").iterdir():
        kind = each.name.rpartition(".")[2]
        if kind in _TYPES:
            found[each.name] = Asset(each.read_bytes(), _TYPES[kind])
    return found
