"""Route by which a caller declares the plan of its app's workflows."""

import re

import msgspec
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import Response

from kairos.core import (
    IDENTIFIER_PATTERN,
    FactSink,
    InvalidRequest,
    PlanDeclared,
    PlannedWork,
    check_plan,
)
from kairos.gateway.api.fastapi_parts import json_response, small_body
from kairos.gateway.auth.access import Access, authorization_of

MOST_BYTES = 32 << 10  # of a plan: its fact must fit into a message of the bus

_NAME = re.compile(IDENTIFIER_PATTERN)
_DECODER = msgspec.json.Decoder(PlannedWork)


class DeclaredPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `PUT /v1/plans/{app}`."""

    id: str  # the app whose workflows it holds for
    object: str = "plan"
    operators: int


def add_plans(app: FastAPI, access: Access, told: FactSink) -> None:
    @app.put("/v1/plans/{name:path}")
    async def put(request: HttpRequest, name: str) -> Response:
        """Declare the plan of an app's workflows; it applies where no call is in flight yet.

        A key of one app declares that app's plan, regardless of the path.
        """
        caller = await access.admitted_caller(authorization_of(request))
        of_app = caller.app or name
        if not _NAME.match(of_app):
            raise InvalidRequest("the app's name has 1 to 128 letters, digits and _.:@/+=-")
        plan = read_plan(await small_body(request, MOST_BYTES))
        told.feed(PlanDeclared(caller.tenant, of_app, plan))
        answer = DeclaredPlan(id=of_app, operators=len(plan.operators))
        return json_response(answer)


def read_plan(body: bytes) -> PlannedWork:
    """Parse a plan. Raises InvalidRequest: The body is not a valid plan."""
    try:
        plan = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not a plan: {error}") from None
    check_plan(plan)
    return plan
