"""Who gives way when the queue is full: calls of workflows that have not begun.

A workflow has begun once one of its calls went to an instance. From then on, to refuse a call of it
throws away what it was served, and the user has nothing; to refuse one that has not begun costs a
wait. So where the queue is full, a call of a workflow under way takes the place of the newest of
these, which has waited least, and no call of a workflow under way is refused while one that has not
begun waits. What says nothing of its workflow is one of its own, and has not begun.

There is no share of the queue's room that is kept: it would be taken off the room of those who have
nothing but new workflows, and what overload needs, the above gives it whole. Ours.
"""

from collections.abc import Iterable

from kairos.model import Request


class Newcomers:
    """The waiting requests of workflows that have not begun. O(1) per request."""

    def __init__(self) -> None:
        self._waiting: dict[str, Request] = {}  # in order of arrival

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def add(self, request: Request) -> None:
        self._waiting[request.id] = request

    def remove(self, request_id: str) -> None:
        """It waits no more, or has begun; one that is not here is ignored."""
        self._waiting.pop(request_id, None)

    def begin(self, requests: Iterable[Request]) -> None:
        """Their workflow has begun."""
        for request in requests:
            self.remove(request.id)

    def newest(self, tenant: str | None = None) -> Request | None:
        """The one that came last: of all, or of a tenant, in O(n)."""
        newest_first = reversed(self._waiting.values())
        return next((each for each in newest_first if tenant in (None, each.tenant)), None)
