"""Plan compiled for the executor: names resolved and templates compiled, once."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.operators import (
    Aggregate,
    Branch,
    Chunking,
    Data,
    Filter,
    Format,
    Generation,
    Group,
    Input,
    Loop,
    MapOver,
    Operator,
    Params,
    Processing,
    RegisteredCall,
    StagedMap,
)
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.compile.references import placeholders
from kairos.workflows.compile.retrieval import aggregated, chunked
from kairos.workflows.compile.templates import expression, template
from kairos.workflows.compile.values import as_text
from kairos.workflows.execute.behaviours import (
    ArgumentReader,
    BeginsPrompt,
    Behaviour,
    Chooses,
    Computes,
    Gathers,
    Gives,
    GivesOfRow,
    Located,
    Loops,
    Maps,
    Names,
    Outputs,
    WantsCall,
    argument_reader,
    inputs_reader,
)
from kairos.workflows.execute.frames import OpenRow, ValueFrame
from kairos.workflows.execute.requests import function_call, generation, processing

ROOT = "the row"  # names a row's result, which has no operator


class CompiledOperator(msgspec.Struct, frozen=True):
    """Slot of a scope, with its behaviour.

    Placeholders and the result of a row have no `operator`. `declared` names the operator of the
    flow that a pass replaced by this one.
    """

    name: str
    operator: Operator | None
    behaviour: Behaviour | None
    fetched: bool = False
    declared: str | None = None


class CompiledScope:
    """Slots of one kind of frame. A body's slots begin with its two placeholders."""

    def __init__(self) -> None:
        self.operators: list[CompiledOperator] = []
        self.ahead: list[int] = []  # slots demanded at the beginning
        self.is_staged = False  # of a body made by the pass `stages`

    def frame(self, row: OpenRow) -> ValueFrame:
        return ValueFrame(row, self, None, "")

    def child(self, parent: ValueFrame, slot: int, number: int, value: object) -> ValueFrame:
        """Make the frame of a loop's round, with its state, or of a map's item."""
        path = f"{parent.node(slot)}.{number}."
        frame = ValueFrame(parent.row, self, parent, path)
        frame.values[0], frame.values[1] = value, number
        return frame


def compile_stage(plan: Plan, stage: int) -> CompiledScope:
    """Compile a stage; its last slot is the result of a row."""
    return _Compiler(plan, stage).scope()


class _Compiler:
    def __init__(self, plan: Plan, stage: int) -> None:
        self._plan, self._stage = plan, stage
        self._fetches = frozenset(plan.fetches)
        self._early = {name for each in plan.partial for name in each.maps}
        self._declared: dict[str, str] = {}
        for each in every_operator(plan.declaration.operators):
            if isinstance(each.params, StagedMap):
                self._declared |= each.params.declared

    def scope(self) -> CompiledScope:
        scope, declared = CompiledScope(), self._plan.declaration
        names = {op.name: Located(0, at) for at, op in enumerate(declared.operators)}
        self._compile(scope, declared.operators, names)
        group = self._plan.group
        root: Behaviour
        if group is not None and self._stage == 0:
            root = self._gathers(declared.operators[names[group].slot], names)
        else:
            columns = (
                (each.column, argument_reader(each.value, names)) for each in declared.outputs
            )
            root = Outputs(tuple(columns))
        for part in self._plan.prefills:
            if part.loop is None or part.first_beside:
                rounds = part.rounds
                inputs = {name: each for name, each in part.inputs.items() if name not in rounds}
                self._begin_ahead(scope, BeginsPrompt(part, inputs_reader(inputs, names)))
        scope.operators.append(CompiledOperator(ROOT, None, root))
        return scope

    def _begin_ahead(self, scope: CompiledScope, begins: BeginsPrompt) -> None:
        scope.ahead.append(len(scope.operators))
        scope.operators.append(CompiledOperator(f"{begins.part.operator}:prefill", None, begins))

    def _compile(self, scope: CompiledScope, operators: Sequence[Operator], names: Names) -> None:
        for each in operators:
            behaviour = self._behaviour(each, names)
            fetched = each.name in self._fetches
            declared = self._declared.get(each.name)
            scope.operators.append(CompiledOperator(each.name, each, behaviour, fetched, declared))

    def _behaviour(self, operator: Operator, names: Names) -> Behaviour:
        params = operator.params
        after = tuple(names[name] for name in operator.after)
        inputs = inputs_reader(operator.inputs, names)
        match params:
            case Input() | Group():
                return GivesOfRow(lambda row: row.given)
            case Data(value=value):
                return GivesOfRow(lambda _: value)
            case Filter() | Branch():
                return Chooses(inputs, after, _choice(params, names))
            case Loop() | MapOver():
                return self._repeats(operator, params, names, after)
        return Computes(inputs, after, self._computed(params))

    def _computed(self, params: Params) -> Callable[[Mapping[str, object]], Gives | WantsCall]:
        match params:
            case Format(template=source):
                filled = template(source)
                return lambda values: Gives(filled.render(values))
            case Chunking():
                return lambda values: Gives(chunked(params, values["text"]))
            case Aggregate():
                return lambda values: Gives(aggregated(values["parts"]))
            case Generation():
                return generation(params, self._plan.revision)
            case RegisteredCall():
                return function_call(params)
        assert isinstance(params, Processing)
        return processing(params, self._plan.revision)

    def _repeats(
        self, operator: Operator, params: Loop | MapOver, names: Names, after: tuple[Located, ...]
    ) -> Behaviour:
        scope = CompiledScope()
        own = [*placeholders(operator), *(each.name for each in params.body)]
        inner = {name: Located(at.up + 1, at.slot) for name, at in names.items()}
        inner |= {name: Located(0, at) for at, name in enumerate(own)}
        scope.is_staged = isinstance(params, StagedMap)
        scope.operators += [CompiledOperator(name, None, None) for name in placeholders(operator)]
        self._compile(scope, params.body, inner)
        result = argument_reader(params.result, inner)
        if isinstance(params, MapOver):
            over = argument_reader(params.over, names)
            return Maps(
                slot=names[operator.name].slot,
                over=over,
                after=after,
                scope=scope,
                result=result,
                max_items=params.max_items,
                early=operator.name in self._early,
                batch=params.batch if isinstance(params, StagedMap) else None,
            )
        for part in self._plan.prefills:
            if part.loop == operator.name and part.beside:
                read = inputs_reader(part.inputs, inner)
                self._begin_ahead(scope, BeginsPrompt(part, read, params.max_rounds - 1))
        until = None if params.until is None else expression(params.until)
        return Loops(
            slot=names[operator.name].slot,
            start=argument_reader(params.start, names),
            after=after,
            scope=scope,
            result=result,
            until=until,
            until_inputs=inputs_reader(params.until_inputs, inner),
            max_rounds=params.max_rounds,
        )

    def _gathers(self, operator: Operator, names: Names) -> Gathers:
        params = operator.params
        assert isinstance(params, Group)
        return Gathers(
            by=expression(params.by),
            inputs=inputs_reader(operator.inputs, names),
            value=argument_reader(params.value, names),
            after=tuple(names[name] for name in operator.after),
        )


def _choice(
    params: Filter | Branch, names: Names
) -> Callable[[Mapping[str, object]], ArgumentReader | None]:
    if isinstance(params, Filter):
        where, of = expression(params.where), argument_reader(params.of, names)
        return lambda values: of if where.value(values) else None
    on = expression(params.on)
    cases = {case: argument_reader(value, names) for case, value in params.cases.items()}
    other = None if params.otherwise is None else argument_reader(params.otherwise, names)
    return lambda values: cases.get(as_text(on.value(values)), other)
