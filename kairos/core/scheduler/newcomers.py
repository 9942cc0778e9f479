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

from kairos.core.model import Request


class Newcomers:
    """The waiting requests of workflows that have not begun. O(1) per request."""

    def __init__(self) -> None:
        self._waiting: dict[str, Request] = {}  # in order of arrival
        self._of: dict[str, dict[str, Request]] = {}  # by tenant, alike

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def add(self, request: Request) -> None:
        self._waiting[request.id] = request
        self._of.setdefault(request.tenant, {})[request.id] = request

    def remove(self, request_id: str) -> None:
        """It waits no more, or has begun; one that is not here is ignored."""
        request = self._waiting.pop(request_id, None)
        if request is not None:
            of = self._of[request.tenant]
            del of[request_id]
            if not of:
                del self._of[request.tenant]

    def begin(self, requests: Iterable[Request]) -> None:
        """Their workflow has begun."""
        for request in requests:
            self.remove(request.id)

    def newest(self, tenant: str | None = None) -> Request | None:
        """The one that came last: of all, or of a tenant."""
        waiting = self._waiting if tenant is None else self._of.get(tenant, {})
        return next(reversed(waiting.values()), None)
