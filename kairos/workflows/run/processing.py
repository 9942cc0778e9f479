"""Processors that a run needs: engines that embed and rank, and collections."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from kairos.core import SetupError
from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.operators import (
    Declaration,
    Embedding,
    Ingest,
    Operator,
    Params,
    Processing,
    Rerank,
    Search,
)
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.compile.references import with_changed
from kairos.workflows.execute.commands import DropHeld, RunProcessor

# Options of `kairos run`, and settings of `kairos serve`.
_EMBEDDER = "--embedder URL, or embedders of [retrieval]"
_RERANKER = "--reranker URL, or rerankers of [retrieval]"
_COLLECTIONS = "--collections DIR, or collections of [retrieval]"


class ValuesLost(Exception):
    """Held values that a call needs are gone. `ids`: these values. They can be recomputed."""

    def __init__(self, ids: Iterable[str]) -> None:
        self.ids = tuple(ids)
        super().__init__(f"{len(self.ids)} values that are needed are no longer held")


class ProcessorCalls(Protocol):
    """Calls of the processors of a run."""

    async def run(self, command: RunProcessor) -> object:
        """Return the value, or a `Stays` if the processor holds it.

        Values are described in `workflows/compile/retrieval.py`.

        Raises:
            InvalidRequest: it cannot be done; a retry makes no sense.
            ValuesLost: a held value that it needs is gone.
            KairosError: it was not done; a retry may succeed.
        """

    def drop_held(self, command: DropHeld) -> None:
        """Drop a held value, now or later."""


class Processors(ProcessorCalls, Protocol):
    """Processors of a run.

    `models`: the models offered for `embed` and `rerank`; no entry without engines, an empty one if
    the engines do not list their models. `keeps_collections`: whether there is a store for
    collections.
    """

    @property
    def models(self) -> Mapping[str, Sequence[str]]: ...

    @property
    def keeps_collections(self) -> bool: ...

    @property
    def waits_for(self) -> Sequence[str]:
        """Return why processors do nothing for waiting items, as far as known."""

    def check_models(self, plan: Plan) -> None:
        """Raise SetupError if an operator names a model that no engine serves."""


def check_processors(plan: Plan, processors: Processors | None) -> None:
    """Raise SetupError if the plan needs a processor or a model that is not there.

    The message names the option for it.
    """
    for each in every_operator(plan.declaration.operators):
        if isinstance(each.params, Processing):
            missing = _missing(each.params, processors)
            if missing is not None:
                raise SetupError(
                    f"operator '{each.name}' is of kind {each.kind}, and no processor does that: "
                    f"give {missing}"
                )
    if processors is not None:
        processors.check_models(plan)


def with_models(declaration: Declaration, processors: Processors | None) -> Declaration:
    """Return the flow with the available model set for operators that name none.

    So results of other models are never reused for them.

    Raises:
        SetupError: several models are available, and the operator must name one.
    """
    if processors is None or not processors.models:
        return declaration
    models = processors.models

    def change(operator: Operator) -> Params:
        params = operator.params
        if not isinstance(params, Embedding | Rerank) or params.model is not None:
            return params
        return msgspec.structs.replace(params, model=_only_model(operator, models))

    return with_changed(declaration, change)


def _only_model(operator: Operator, models: Mapping[str, Sequence[str]]) -> str | None:
    """Return the only model; None: no engines for it; empty: the engines list no models."""
    offered = models.get(operator.kind)
    if offered is None or len(offered) < 2:
        return None if offered is None else "".join(offered)
    names = ", ".join(offered[:20])
    raise SetupError(
        f"operator '{operator.name}' names no model, and its engines serve several: give it a "
        f"`model` of {names}"
    )


def _missing(params: Processing, processors: Processors | None) -> str | None:
    """Return the option that is missing.

    Embedders also serve searches in a row's own collection.
    """
    models = {} if processors is None else processors.models
    match params:
        case Embedding():
            return None if "embed" in models else _EMBEDDER
        case Rerank():
            return None if "rerank" in models else _RERANKER
        case Ingest(collection=str()) | Search(collection=str()):
            is_there = processors is not None and processors.keeps_collections
            return None if is_there else _COLLECTIONS
    return _EMBEDDER if processors is None else None
