"""Short request bodies, which are read as a whole."""

from starlette.requests import Request

from kairos.core import BodyTooLarge


async def small_body(request: Request, most_bytes: int) -> bytes:
    """Return the body. Raises BodyTooLarge: It exceeds `most_bytes`."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most_bytes:
            raise BodyTooLarge(most_bytes)
    return bytes(body)
