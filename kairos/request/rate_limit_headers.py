"""Remaining quota in the headers that OpenAI's clients know.

`x-ratelimit-limit-requests`, `-remaining-requests`, `-reset-requests`, and the same for tokens.
"""

from kairos.core import RateLimit, RateLimits

PREFIX = b"x-ratelimit-"

Headers = list[tuple[bytes, bytes]]


def with_limits(headers: Headers, limits: RateLimits) -> Headers:
    """Return the headers with these limits, in place of the engine's own."""
    ours = [each for each in headers if not each[0].startswith(PREFIX)]
    for what, limit in ((b"requests", limits.requests), (b"tokens", limits.tokens)):
        if limit is not None:
            ours += _of(what, limit)
    return ours


def _of(what: bytes, limit: RateLimit) -> Headers:
    return [
        (b"x-ratelimit-limit-" + what, b"%d" % limit.limit),
        (b"x-ratelimit-remaining-" + what, b"%d" % limit.remaining),
        (b"x-ratelimit-reset-" + what, _duration(limit.reset_us).encode()),
    ]


def _duration(us: int) -> str:
    """Return a duration in OpenAI's format: `17ms`, `7.66s`, `6m0s`, `23h59m0s`. Rounded up."""
    ms = -(-us // 1_000)
    if 0 < ms < 1_000:
        return f"{ms}ms"
    minutes, rest = divmod(ms, 60_000)
    seconds = f"{rest / 1_000:g}s"
    if not minutes:
        return seconds
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}" if hours else f"{minutes}m{seconds}"
