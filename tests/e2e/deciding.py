"""A balancer whose decisions a test completes."""

import msgspec

from kairos.events import Dispatch


def deciding(balancer, priority_of):
    """From now on `balancer` dispatches each request with the priority that the test gives it."""
    handle = balancer.handle

    def and_more(event, at):
        return [
            msgspec.structs.replace(each, priority=priority_of(each.request_id))
            if isinstance(each, Dispatch)
            else each
            for each in handle(event, at)
        ]

    balancer.handle = and_more
