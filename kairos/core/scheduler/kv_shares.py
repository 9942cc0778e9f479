"""Which tenants hold as much of the pool's KV memory as they may: ours.

A call holds its prompt and the answer that is expected of it, from its dispatch to its end. A
tenant that holds its share or more gets no turn until some of its calls have ended, so it goes
beyond by less than one call; one that must run alone is not held up. It is a limit: room that only
such a tenant could use stays empty.
"""

from collections.abc import Iterable, Mapping

from kairos.core.model import Instance, Request


class KvShares:
    """Of tenants that are held to one."""

    def __init__(self, shares: Mapping[str, float], running: Iterable[Request]) -> None:
        """`shares` of the pool, above 0, by tenant; `running`: the calls that are dispatched."""
        self._shares = shares
        self._held: dict[str, int] = dict.fromkeys(shares, 0)  # tokens
        self._calls: dict[str, Request] = {}  # that hold it, by id
        for request in running:
            self.dispatched(request)

    def dispatched(self, request: Request) -> None:
        if request.tenant in self._held:
            self._calls[request.id] = request
            self._held[request.tenant] += _tokens(request)

    def released(self, request_id: str) -> None:
        request = self._calls.pop(request_id, None)
        if request is not None:
            self._held[request.tenant] -= _tokens(request)

    def used_up(self, instances: Iterable[Instance]) -> set[str]:
        """The tenants that hold their share of the memory of these, as far as that is known."""
        known = sum(each.kv_tokens for each in instances if each.kv_tokens is not None)
        if not known:
            return set()
        return {name for name, held in self._held.items() if held >= self._shares[name] * known}


def _tokens(request: Request) -> int:
    return request.prompt_tokens + request.completion_tokens
