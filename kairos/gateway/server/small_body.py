"""The body of a request that is answered here: short, and read whole."""

from starlette.requests import Request

from kairos.core.errors import BodyTooLarge


async def small_body(request: Request, most_bytes: int) -> bytes:
    """Raises BodyTooLarge."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most_bytes:
            raise BodyTooLarge(most_bytes)
    return bytes(body)
