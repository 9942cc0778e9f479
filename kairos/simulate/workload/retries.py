"""Retries of clients, as in openai's Python client (3.x, its defaults)."""

RETRIES = 2  # of one call, at most
_TRIED_AGAIN = (408, 409, 429)


def is_tried_again(status: int) -> bool:
    return status in _TRIED_AGAIN or status >= 500
