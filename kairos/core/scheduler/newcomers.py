"""Eviction when the queue is full: calls of workflows that have not begun. Not in the paper.

A workflow has begun once one of its calls was dispatched. After that, refusing one of its calls
wastes all the service it got, and its user gets nothing; refusing a workflow that has not begun
only costs a wait. So when the queue is full, a call of a begun workflow replaces the newest call of
a workflow that has not begun, which has waited least. No call of a begun workflow is refused while
such a call waits. A call that does not name its workflow is a workflow of its own that has not
begun.

No part of the queue is reserved for begun workflows: that would take capacity from clients with
only new workflows, and the rule above already gives begun ones the whole queue under overload.
"""

from collections.abc import Iterable

from kairos.core.model import Request


class Newcomers:
    """Waiting requests of workflows that have not begun. O(1) per request."""

    def __init__(self) -> None:
        self._waiting: dict[str, Request] = {}  # in order of arrival
        self._of: dict[str, dict[str, Request]] = {}  # by tenant, in the same order

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def add(self, request: Request) -> None:
        self._waiting[request.id] = request
        self._of.setdefault(request.tenant, {})[request.id] = request

    def remove(self, request_id: str) -> None:
        """Remove a request that left the queue or whose workflow has begun, if it is here."""
        request = self._waiting.pop(request_id, None)
        if request is not None:
            of = self._of[request.tenant]
            del of[request_id]
            if not of:
                del self._of[request.tenant]

    def remove_begun(self, requests: Iterable[Request]) -> None:
        """Remove requests whose workflow has begun."""
        for request in requests:
            self.remove(request.id)

    def newest(self, tenant: str | None = None) -> Request | None:
        """Return the latest arrival, of all tenants or of one, if any."""
        waiting = self._waiting if tenant is None else self._of.get(tenant, {})
        return next(reversed(waiting.values()), None)
