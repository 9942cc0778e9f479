"""What a client asks an invocation, and what it is answered."""

from collections.abc import Mapping
from typing import Any

import msgspec

from kairos.errors import InvalidRequest
from kairos.execution.limits import FlowFigures
from kairos.live.flows.invocation import FlowResult
from kairos.plan.pipeline import Plan

THREAD_BYTES = 64 << 10  # of a body that is read beside the event loop


class InvokeAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /v1/flows/{name}/invoke`. `inputs`: by column. `settings`: by
    `OPERATOR.PARAMETER`. `stream`: what is done is told as it is done."""

    inputs: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    stream: bool = False


def read_invoke(body: bytes) -> InvokeAsked:
    """Raises InvalidRequest."""
    try:
        return msgspec.json.decode(body, type=InvokeAsked)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is no invocation: {error}") from None


def check_inputs(plan: Plan, row: Mapping[str, object]) -> None:
    """Raises InvalidRequest: a column that the flow needs is missing."""
    missing = [column for column in plan.columns if column not in row]
    if missing:
        has = ", ".join(f"'{name[:64]}'" for name in list(row)[:20]) or "nothing"
        raise InvalidRequest(
            f"the flow needs the column '{missing[0][:64]}'; inputs has {has}", "inputs"
        )


def usage_view(figures: FlowFigures) -> dict[str, Any]:
    """Of all calls of the flow together, as OpenAI counts."""
    return {
        "calls": figures.calls,
        "prompt_tokens": figures.prompt_tokens,
        "completion_tokens": figures.completion_tokens,
        "total_tokens": figures.prompt_tokens + figures.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": figures.cached_tokens},
    }


def result_view(
    invocation_id: str, flow: str, created_s: int, result: FlowResult
) -> dict[str, Any]:
    return {
        "id": invocation_id,
        "object": "flow.invocation",
        "flow": flow,
        "created": created_s,
        "outputs": result.outputs,
        "usage": usage_view(result.figures),
        "took_s": round(result.took_s, 6),
    }
