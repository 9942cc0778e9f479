"""Request and response bodies of an invocation."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from kairos.core import InvalidRequest
from kairos.request import MemberNames, count_values, reading_of
from kairos.workflows.compile.columns import Columns
from kairos.workflows.execute.limits import FlowFigures
from kairos.workflows.serve.invocation import FlowResult

THREAD_BYTES = 64 << 10  # larger bodies are read in a thread
SETTINGS_BYTES = 64 << 10
MOST_VALUES = 250_000  # read from one body: takes 20 ms
_LONG_NAME = 1_000  # characters of a column's name
_MEMBERS = MemberNames(("inputs", "settings", "stream"))

_T = TypeVar("_T")


class InvokeAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/flows/{name}/invoke`.

    `inputs`: by column. `settings`: by `OPERATOR.PARAMETER`. `stream`: send each operator's end as
    an event.
    """

    inputs: msgspec.Raw = msgspec.Raw(b"{}")
    settings: msgspec.Raw = msgspec.Raw(b"{}")
    stream: bool = False

    def settings_of(self) -> dict[str, Any]:
        """Return the settings. Raises InvalidRequest."""
        size = len(self.settings)
        if size > SETTINGS_BYTES:
            raise InvalidRequest(
                f"settings has {size} bytes; at most {SETTINGS_BYTES} are allowed", "settings"
            )
        return _decoded(self.settings, dict[str, Any])


def read_invoke(body: bytes) -> InvokeAsked:
    """Read the body of an invocation. Raises InvalidRequest."""
    compiled = reading_of(len(body))
    if compiled is None or len(body) <= THREAD_BYTES:
        return _decoded(body, InvokeAsked)
    places, count = _MEMBERS.places_and_count(body, compiled)
    if count > len(places):
        raise InvalidRequest(
            "the body is not an invocation: only inputs, settings and stream are allowed, each once"
        )
    spelt = {name: body[place.start : place.end] for name, place in places.items()}
    large = {name: msgspec.Raw(spelt.pop(name)) for name in ("inputs", "settings") if name in spelt}
    small = b",".join(b'"%b":%b' % (name.encode(), value) for name, value in spelt.items())
    return msgspec.structs.replace(_decoded(b"{%b}" % small, InvokeAsked), **large)


def row_of_inputs(inputs: msgspec.Raw, table: Columns) -> Mapping[str, object]:
    """Return the columns that a flow needs; other columns are not decoded.

    Raises:
        InvalidRequest: a column is missing, or the inputs have too many values.
    """
    if table.whole:
        check_values(bytes(inputs), "inputs")
        row = _decoded(inputs, dict[str, Any])
    else:
        spelt = _columns(inputs, table.required)
        check_values(b",".join(spelt.values()), "inputs")
        row = {column: _decoded(value, Any) for column, value in spelt.items()}
    missing = [column for column in table.required if column not in row]
    if missing:
        raise InvalidRequest(
            f"the flow needs the column '{missing[0][:64]}'; inputs has {_names(inputs)}", "inputs"
        )
    return row


def _columns(inputs: msgspec.Raw, wanted: tuple[str, ...]) -> dict[str, bytes]:
    compiled = reading_of(len(inputs))
    are_short = all(len(each) < _LONG_NAME for each in wanted)
    if compiled is not None and len(inputs) > THREAD_BYTES and are_short:
        json = bytes(inputs)
        places = MemberNames(wanted).places(json, compiled)
        return {name: json[place.start : place.end] for name, place in places.items()}
    found = _decoded(inputs, dict[str, msgspec.Raw])
    return {name: bytes(found[name]) for name in wanted if name in found}


def check_values(json: bytes, name: str) -> None:
    """Raise InvalidRequest if a JSON text has more values than one body may."""
    if len(json) > MOST_VALUES and (count := count_values(json)) > MOST_VALUES:
        raise InvalidRequest(
            f"{name} has {count} values; at most {MOST_VALUES} are allowed: send long lists as "
            "text, or in several invocations",
            name,
        )


def _names(inputs: msgspec.Raw) -> str:
    if len(inputs) > THREAD_BYTES:
        return "others"
    names = list(_decoded(inputs, dict[str, msgspec.Raw]))
    return ", ".join(f"'{name[:64]}'" for name in names[:20]) or "nothing"


def _decoded(json: bytes | msgspec.Raw, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(json, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not an invocation: {error}") from None


def usage_view(figures: FlowFigures) -> dict[str, Any]:
    """Return the usage of all calls of the flow together, in OpenAI's terms."""
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
