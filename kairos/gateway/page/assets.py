"""Static files of the page, and the headers that restrict browsers to them.

They are read on the first request, and served by exact name: no path of a request ever leads to a
file. They are plain HTML, CSS and JavaScript modules; only `frame.html`, which all pages share, is
merged in. Nothing is loaded from another host.
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
_FRAME = "frame.html"
# All other content on the page is inert text: no injected script, style or link is followed.
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


def read_assets() -> dict[str, Asset]:
    """Return the static files by name."""
    folder = files("kairos.gateway.page").joinpath("static")
    frame, found = folder.joinpath(_FRAME).read_text(encoding="utf-8"), {}
    for each in folder.iterdir():
        name, _, kind = each.name.rpartition(".")
        if kind not in _TYPES or each.name == _FRAME:
            continue
        content = each.read_bytes()
        if kind == "html":
            content = _framed(frame, name, content.decode()).encode()
        found[each.name] = Asset(content, _TYPES[kind])
    return found


def _framed(frame: str, name: str, page: str) -> str:
    """Return the whole page: the frame, with the file's part of the head, and its `main`."""
    head, opening, rest = page.partition("<main ")
    link = f'<a href="/ui/{name}"' if name != "now" else '<a href="/ui"'
    current = frame.replace(f"{link}>", f'{link} aria-current="page">')
    return current.replace("<!-- head -->\n", head).replace("<!-- main -->\n", opening + rest)
