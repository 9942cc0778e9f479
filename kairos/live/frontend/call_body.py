"""What is read of a call's body, by its route."""

from kairos.live.frontend.openai_errors import HOT_ROUTES
from kairos.live.request.body import Body, read_body

_CHAT = "/v1/chat/completions"
# What engines make of an upload, a recording or a picture: Whisper has 1,500 for half a minute.
_UPLOAD_TOKENS = 1_500
_STREAM_OPTIONS_ROUTES = {_CHAT, "/v1/completions"}


def body_of(path: str, headers: dict[bytes, bytes], content: bytes) -> Body:
    """Raises InvalidRequest: no engine could serve it."""
    known = path in HOT_ROUTES
    # However it is spelt: an engine reads as JSON what was not read here otherwise.
    if known or headers.get(b"content-type", b"").lower().startswith(b"application/json"):
        if not content and not known:
            return Body(content)
        streams_usage = path in _STREAM_OPTIONS_ROUTES
        return read_body(content, chat=path == _CHAT, streams_usage=streams_usage, generates=known)
    return Body(content, prompt_tokens=min(max(1, len(content) // 4), _UPLOAD_TOKENS))
