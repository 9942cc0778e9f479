"""Remaining quota, as reported to a client."""

import msgspec


class RateLimit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    limit: int  # of calls or tokens, per minute or day
    remaining: int  # what may still be used at once
    reset_us: int  # time until the full limit is available again, without further use


class RateLimits(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The tightest remaining quota of each kind. None: unlimited."""

    requests: RateLimit | None = None
    tokens: RateLimit | None = None


def scarcer(one: RateLimit | None, other: RateLimit | None) -> RateLimit | None:
    """Return the quota with less left; if equal, the one that takes longer to reset."""
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda each: (each.remaining, -each.reset_us))
