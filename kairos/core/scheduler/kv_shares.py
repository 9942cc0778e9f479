"""Limits on the share of the pool's KV memory that a tenant may use. Not in the paper.

A call uses its prompt and expected answer, from its dispatch to its end. A tenant that uses its
share or more is not served until some of its calls have ended. So it exceeds the share by less than
one call; a call that must run alone is exempt. This is a limit: memory that only such a tenant
could use stays free.
"""

from collections.abc import Iterable, Mapping

from kairos.core.model import Instance, Request


class KvShares:
    """Memory in use by tenants with a limited share."""

    def __init__(self, shares: Mapping[str, float], running: Iterable[Request]) -> None:
        """Set the limits: `shares` of the pool by tenant, above 0.

        The calls in `running` were dispatched before.
        """
        self._shares = shares
        self._held: dict[str, int] = dict.fromkeys(shares, 0)  # tokens
        self._calls: dict[str, Request] = {}  # running calls of these tenants, by id
        for request in running:
            self.add_running(request)

    def add_running(self, request: Request) -> None:
        if request.tenant in self._held:
            self._calls[request.id] = request
            self._held[request.tenant] += _tokens(request)

    def remove_running(self, request_id: str) -> None:
        request = self._calls.pop(request_id, None)
        if request is not None:
            self._held[request.tenant] -= _tokens(request)

    def used_up(self, instances: Iterable[Instance]) -> set[str]:
        """Return the tenants that have used up their share of these instances' known memory."""
        known = sum(each.kv_tokens for each in instances if each.kv_tokens is not None)
        if not known:
            return set()
        return {name for name, held in self._held.items() if held >= self._shares[name] * known}


def _tokens(request: Request) -> int:
    return request.prompt_tokens + request.completion_tokens
