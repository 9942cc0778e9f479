"""Execution of the active balancer's orders by a performer."""

from kairos.cluster.pool.messages import Declined
from kairos.core import Dispatch, Refuse
from kairos.proxy import CallsInFlight


def obey(calls: CallsInFlight, command: Dispatch | Refuse | Declined, turn: int) -> bool:
    """Execute a command for the given turn of a call (0: any turn).

    Return whether the call waits on that turn; otherwise nothing is done.
    """
    request_id = command.request_id
    if not calls.expects(request_id) or turn not in (0, calls.turn(request_id)):
        return False
    match command:
        case Dispatch():
            calls.dispatch(command)
        case Refuse():
            calls.refuse(command)
        case Declined():
            calls.decline(request_id, command.error())
    return True
