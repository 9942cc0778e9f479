"""Waiting times of requests for an instance that has more of their prompt cached.

They limit each wait to the time it saves. Not in the paper.
"""

_MAX_WAITS = 10_000  # requests


class WarmWaits:
    """Start of the wait by request id. The oldest entries, of cancelled requests, are dropped."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self.changes = 0

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._since

    def __len__(self) -> int:
        return len(self._since)

    def since(self, request_id: str) -> int | None:
        return self._since.get(request_id)

    def waited_us(self, request_id: str, at: int) -> int:
        """Return how long the request has waited so far."""
        return at - self._since.get(request_id, at)

    def start_wait(self, request_id: str, at: int) -> None:
        """Record that a request waits."""
        if request_id in self._since:
            return
        self._since[request_id] = at
        self.changes += 1
        if len(self._since) > _MAX_WAITS:
            del self._since[next(iter(self._since))]

    def end_wait(self, request_id: str) -> None:
        if self._since.pop(request_id, None) is not None:
            self.changes += 1
