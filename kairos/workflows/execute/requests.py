"""Requests of operators to engines, functions and processors, and values of the answers."""

from collections.abc import Callable, Mapping

from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.compile.json_answers import read_answer
from kairos.workflows.compile.operators import (
    Asking,
    Embedding,
    Generation,
    Processing,
    RegisteredCall,
    Rerank,
    Search,
    kind_of,
)
from kairos.workflows.compile.retrieval import (
    check_answer,
    check_arguments,
    flat_parts,
    settings,
    without_asking,
)
from kairos.workflows.compile.signatures import of_call, of_processing, of_request
from kairos.workflows.compile.template_language import TemplateWork
from kairos.workflows.compile.templates import template
from kairos.workflows.execute.behaviours import Gives, WantsCall


def generation(params: Generation, revision: str) -> Callable[[Mapping[str, object]], WantsCall]:
    """Return a function that makes chat completions, with keys always in the same order."""
    messages = [(each.role, template(each.template)) for each in params.messages]
    rest = _sampling(params)

    def compute(values: Mapping[str, object]) -> WantsCall:
        work = TemplateWork()
        filled = [{"role": role, "content": text.render(values, work)} for role, text in messages]
        body = {"messages": filled, **rest}
        return WantsCall(body, of_request(params.model, revision, body))

    return compute


def function_call(params: RegisteredCall) -> Callable[[Mapping[str, object]], WantsCall]:
    def compute(values: Mapping[str, object]) -> WantsCall:
        try:
            signature = of_call(params.function, params.version, values)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise OperatorFailed(f"an argument is not JSON: {error}") from error
        return WantsCall(values, signature)

    return compute


def processing(
    params: Processing, revision: str
) -> Callable[[Mapping[str, object]], Gives | WantsCall]:
    kind, counts = kind_of(params), {**settings(params)}
    counts.pop("batch", None)  # the size of a batch changes no vector
    if isinstance(params, Embedding | Rerank):
        counts |= {"model": params.model, "revision": revision}

    in_row = isinstance(params, Search) and params.collection is None

    def compute(values: Mapping[str, object]) -> Gives | WantsCall:
        if in_row:
            values = flat_parts(values)
        check_arguments(params, values)
        nothing = without_asking(params, values)
        if nothing is not None:
            return Gives(nothing)
        return WantsCall(values, of_processing(kind, counts, values))

    return compute


def value_of(
    params: Asking, asked: Mapping[str, object], answered: object, *, cut: str | None
) -> object:
    """Return the value of an answer: with a schema the JSON in its text, else the answer itself.

    `asked`: the content of the call.

    Raises:
        OperatorFailed: the answer was cut and may not be used, is not JSON, does not match the
            schema, or does not fit the request to a processor.
    """
    if isinstance(params, RegisteredCall):
        return answered
    if isinstance(params, Processing):
        check_answer(params, asked, answered)
        return answered
    if not isinstance(answered, str):
        raise OperatorFailed("the answer has no text")
    if cut is not None and params.on_cut != "keep":
        raise OperatorFailed(f"the answer is not whole: {cut}")
    if params.schema is None:
        return answered
    return read_answer(answered, params.schema, params.parse, cut)


def _sampling(params: Generation) -> dict[str, object]:
    rest: dict[str, object] = {"temperature": params.temperature}
    if params.model is not None:
        rest["model"] = params.model
    for key in ("max_tokens", "top_p", "seed"):
        value = getattr(params, key)
        if value is not None:
            rest[key] = value
    if params.stop:
        rest["stop"] = list(params.stop)
    if params.schema is not None:
        schema = {"name": "answer", "schema": params.schema, "strict": True}
        rest["response_format"] = {"type": "json_schema", "json_schema": schema}
    return rest
