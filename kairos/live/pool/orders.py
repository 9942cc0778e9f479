"""Orders from whoever decides, where the call is performed."""

from kairos.events import Dispatch, Refuse
from kairos.live.pool.messages import Declined
from kairos.live.proxy.engine import HttpEngine


def obey(engine: HttpEngine, command: Dispatch | Refuse | Declined, turn: int) -> bool:
    """Do what was decided on a turn (0: on whichever there is). What is about a call that has
    ended, or on an earlier turn, does nothing; returns whether it was neither."""
    request_id = command.request_id
    if not engine.expects(request_id) or turn not in (0, engine.turn(request_id)):
        return False
    match command:
        case Dispatch():
            engine.dispatch(command)
        case Refuse():
            engine.refuse(command)
        case Declined():
            engine.decline(request_id, command.error())
    return True
