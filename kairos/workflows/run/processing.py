"""What a run needs of processors: engines that embed and rank, and collections."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from kairos.core.errors import SetupError
from kairos.workflows.compile.check import every
from kairos.workflows.compile.operators import (
    Declaration,
    Embedding,
    Ingest,
    Loop,
    MapOver,
    Operator,
    Processing,
    Rerank,
    Search,
)
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.execute.commands import DropHeld, RunProcessor

# As `kairos run` names them, and the settings of `kairos serve`.
_EMBEDDER = "--embedder URL, or embedders of [retrieval]"
_RERANKER = "--reranker URL, or rerankers of [retrieval]"
_COLLECTIONS = "--collections DIR, or collections of [retrieval]"


class Processors(Protocol):
    """`models`: for `embed` and `rerank`, where there are engines for that, the models that they
    offer; none, where they do not tell. `keeps_collections`: whether there is a place for those
    that stay. `keeps_values`: whether what they make stays with them where nobody else needs it."""

    @property
    def models(self) -> Mapping[str, Sequence[str]]: ...

    @property
    def keeps_collections(self) -> bool: ...

    @property
    def keeps_values(self) -> bool: ...

    @property
    def waits_for(self) -> Sequence[str]:
        """Return why processors do nothing for items that wait, as far as they say."""

    def check_models(self, plan: Plan) -> None:
        """Raises SetupError: an operator names a model that no engine serves."""

    async def run(self, command: RunProcessor) -> object:
        """What it gives (`workflows/compile/retrieval.py`), or that this `Stays`.

        Raises:
            InvalidRequest: it cannot be done, and no other attempt will do it.
            ValuesLost: what it needs is not where it stayed.
            KairosError: it was not done; another attempt may do it.
        """

    def drop(self, command: DropHeld) -> None:
        """Sooner or later."""

    def end(self) -> None:
        """Nothing of the flow is needed any more."""


def check_processors(plan: Plan, processors: Processors | None) -> None:
    """Raises SetupError: the plan needs one that is not there, or a model that none serves; says
    which option names it."""
    for each in every(plan.declaration.operators):
        if isinstance(each.params, Processing):
            missing = _missing(each.params, processors)
            if missing is not None:
                raise SetupError(
                    f"operator '{each.name}' is of kind {each.kind}, and nothing is there that "
                    f"does it: give {missing}"
                )
    if processors is not None:
        processors.check_models(plan)


def with_models(declaration: Declaration, processors: Processors | None) -> Declaration:
    """The same flow, in which operators that name no model name the one that is there for them: so
    results of another are not taken for its own.

    Raises:
        SetupError: there are several, of which the operator must name one.
    """
    if processors is None or not processors.models:
        return declaration
    operators = tuple(_with_model(each, processors.models) for each in declaration.operators)
    return msgspec.structs.replace(declaration, operators=operators)


def _with_model(operator: Operator, models: Mapping[str, Sequence[str]]) -> Operator:
    params = operator.params
    if isinstance(params, Embedding | Rerank) and params.model is None:
        params = msgspec.structs.replace(params, model=_only_model(operator, models))
    elif isinstance(params, Loop | MapOver):
        body = tuple(_with_model(each, models) for each in params.body)
        params = msgspec.structs.replace(params, body=body)
    return msgspec.structs.replace(operator, params=params)


def _only_model(operator: Operator, models: Mapping[str, Sequence[str]]) -> str | None:
    """None: there are no engines for it. Empty: the engines', which do not tell."""
    offered = models.get(operator.kind)
    if offered is None or len(offered) < 2:
        return None if offered is None else "".join(offered)
    names = ", ".join(offered[:20])
    raise SetupError(
        f"operator '{operator.name}' names no model, and its engines serve several: give it a "
        f"`model` of {names}"
    )


def _missing(params: Processing, processors: Processors | None) -> str | None:
    """The option that is missing. Whoever embeds searches in what a row has itself, too."""
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
