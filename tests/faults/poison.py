"""Calls that are themselves the fault: what they say, and how a proxy knows them."""

from tests.faults.proxy import is_call
from tests.faults.wire import Request

POISON = "abracadabra"


def is_poison(request: Request) -> bool:
    return is_call(request) and POISON.encode() in request.raw
