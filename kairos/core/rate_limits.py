"""What is left of a quota, as a client is told."""

import msgspec


class RateLimit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    limit: int  # of calls or tokens, per minute or day
    remaining: int  # that could come at once
    reset_us: int  # until all of it is there again, if nothing more comes


class RateLimits(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Of each kind the one of which least is left. None: there is no limit."""

    requests: RateLimit | None = None
    tokens: RateLimit | None = None


def scarcer(one: RateLimit | None, other: RateLimit | None) -> RateLimit | None:
    """Of which less is left; of as much, that which takes longer to be whole."""
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda each: (each.remaining, -each.reset_us))
