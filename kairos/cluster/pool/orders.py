"""Orders from the active balancer, where calls are performed."""

from kairos.cluster.pool.messages import Declined
from kairos.core.events import Dispatch, Refuse
from kairos.proxy.calls_in_flight import CallsInFlight


def obey(calls: CallsInFlight, command: Dispatch | Refuse | Declined, turn: int) -> bool:
    """Do what was decided on a turn (0: on whichever there is).

    Return whether the call waits on that turn: otherwise nothing is done.
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
