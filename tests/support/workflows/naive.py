"""Flows as plain recursion: one row after the other, one call after the other, nothing merged,
fetched or left out. What an executor of any plan must come to."""

from kairos.workflows import Generation
from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.compile.operators import (
    Branch,
    Chunking,
    Constant,
    Data,
    Filter,
    Format,
    Group,
    Input,
    Loop,
    MapOver,
    Processing,
    Reference,
    References,
    RegisteredCall,
)
from kairos.workflows.compile.retrieval import check_arguments, chunked, settings, without_asking
from kairos.workflows.compile.templates import Expression, Template
from kairos.workflows.compile.values import Missing, as_text, part
from kairos.workflows.execute.requests import value_of
from tests.support.simulate.standin import processed

ABSENT = object()


class RowFailed(Exception):
    """Its operator, as a node."""


class Scope:
    def __init__(self, operators, values=None, around=None, path=""):
        self.operators = {each.name: each for each in operators}
        self.values = dict(values or {})
        self.around, self.path = around, path

    def owner(self, name):
        if name in self.operators or name in self.values:
            return self
        return self.around.owner(name)


class Naive:
    """`answer`: the text that an engine gives to a request; `process`: what a processor gives to
    a kind and its arguments. An exception: the call breaks."""

    def __init__(self, declaration, answer, functions=None, process=processed):
        self.process = process
        self.declaration, self.answer, self.functions = declaration, answer, functions or {}
        self.calls = {}  # (stage, node, row) -> request
        self.written, self.failed, self.dropped = {}, {}, set()

    def run(self, rows):
        groups = [e for e in self.declaration.operators if isinstance(e.params, Group)]
        if not groups:
            for number, row in enumerate(rows):
                self._row(0, number, row)
            return self
        (group,) = groups
        gathered = {}
        for number, row in enumerate(rows):
            key = self._row(0, number, row, group=group)
            if key is not None:
                gathered.setdefault(key[0], []).append(key[1])
        for number, (key, items) in enumerate(gathered.items()):
            self._row(1, number, {"key": key, "items": items})
        return self

    def _row(self, stage, number, row, group=None):
        self.at, self.row = (stage, number), row
        scope = Scope(self.declaration.operators)
        if stage == 1:
            (of,) = (e.name for e in self.declaration.operators if isinstance(e.params, Group))
            scope.values[of] = row
        try:
            if group is not None:
                gathered = self._gathered(group, scope)
                if gathered is None:
                    self.dropped.add(self.at)
                return gathered
            outs = self.declaration.outputs
            for each in outs:
                self._demanded(each.value, scope)
            values = {each.column: self._read(each.value, scope) for each in outs}
        except RowFailed as failed:
            self.failed[self.at] = str(failed)
            return None
        except OperatorFailed:
            self.failed[self.at] = "the row"
            return None
        if all(value is ABSENT for value in values.values()):
            self.dropped.add(self.at)
        else:
            self.written[self.at] = {k: None if v is ABSENT else v for k, v in values.items()}
        return None

    def _gathered(self, group, scope):
        try:
            for each in (*group.inputs.values(), group.params.value):
                self._demanded(each, scope)
            inputs = self._inputs(group.inputs, scope)
            value = self._read(group.params.value, scope)
            if inputs is ABSENT or value is ABSENT:
                return None
            return as_text(Expression(group.params.by).value(inputs)), value
        except OperatorFailed as error:
            raise RowFailed("the row") from error

    def _value(self, name, scope):
        owner = scope.owner(name)
        if name not in owner.values:
            operator = owner.operators[name]
            try:
                owner.values[name] = self._compute(operator, owner)
            except OperatorFailed as error:
                if operator.on_error == "fail":
                    raise RowFailed(owner.path + name) from error
                owner.values[name] = ABSENT if operator.on_error == "skip" else operator.default
        return owner.values[name]

    def _demanded(self, argument, scope):
        for each in (
            (argument,) if isinstance(argument, Reference) else getattr(argument, "each", ())
        ):
            self._value(each.operator, scope)

    def _read(self, argument, scope):
        if isinstance(argument, Constant):
            return argument.value
        if isinstance(argument, References):
            values = [self._read(each, scope) for each in argument.each]
            return [value for value in values if value is not ABSENT]
        value = self._value(argument.operator, scope)
        if value is ABSENT:
            return ABSENT
        try:
            return part(value, argument.path)
        except Missing as missing:
            raise OperatorFailed(str(missing)) from missing

    def _inputs(self, inputs, scope):
        for argument in inputs.values():
            self._demanded(argument, scope)
        found, failed = {}, None
        for name, argument in inputs.items():
            try:
                found[name] = self._read(argument, scope)
            except OperatorFailed as error:
                failed = failed or error
        if any(value is ABSENT for value in found.values()):
            return ABSENT
        if failed:
            raise failed
        return found

    def _compute(self, operator, scope):
        params = operator.params
        for name in operator.after:
            self._value(name, scope)
        if isinstance(params, Input):
            return self.row
        if isinstance(params, Data):
            return params.value
        if isinstance(params, Loop):
            return self._loop(operator, scope)
        if isinstance(params, MapOver):
            return self._map(operator, scope)
        inputs = self._inputs(operator.inputs, scope)
        return ABSENT if inputs is ABSENT else self._of_inputs(operator, scope, inputs)

    def _of_inputs(self, operator, scope, inputs):
        params = operator.params
        if isinstance(params, Format):
            return Template(params.template).render(inputs)
        if isinstance(params, Filter):
            if not Expression(params.where).value(inputs):
                return ABSENT
            return self._chosen(params.of, scope)
        if isinstance(params, Branch):
            case = as_text(Expression(params.on).value(inputs))
            chosen = params.cases.get(case, params.otherwise)
            return ABSENT if chosen is None else self._chosen(chosen, scope)
        return self._call(operator, scope, inputs)

    def _chosen(self, argument, scope):
        self._demanded(argument, scope)
        return self._read(argument, scope)

    def _call(self, operator, scope, inputs):
        params = operator.params
        if isinstance(params, RegisteredCall):
            return self.functions[params.function](**inputs)
        if isinstance(params, Chunking):
            return chunked(params, inputs["text"])
        if isinstance(params, Processing):
            return self._processed(operator, params, inputs)
        assert isinstance(params, Generation)
        messages = [
            {"role": each.role, "content": Template(each.template).render(inputs)}
            for each in params.messages
        ]
        self.calls[(self.at[0], scope.path + operator.name, self.at[1])] = messages
        text = self.answer(messages, params)
        return value_of(params, {}, text, cut=None)

    def _processed(self, operator, params, inputs):
        check_arguments(params, inputs)
        nothing = without_asking(params, inputs)
        if nothing is not None:
            return nothing
        answer = self.process(operator.kind, {**inputs, **settings(params)})
        return value_of(params, inputs, answer, cut=None)

    def _loop(self, operator, scope):
        params = operator.params
        self._demanded(params.start, scope)
        state = self._read(params.start, scope)
        for number in range(params.max_rounds):
            if state is ABSENT:
                break
            values = {f"{operator.name}.state": state, f"{operator.name}.round": number}
            path = f"{scope.path}{operator.name}.{number}."
            inner = Scope(params.body, values, scope, path)
            self._demanded(params.result, inner)
            last = number + 1 == params.max_rounds
            if params.until is not None and not last:
                for each in params.until_inputs.values():
                    self._demanded(each, inner)
            state = self._read(params.result, inner)
            if state is ABSENT or last or params.until is None:
                continue
            known = self._inputs(params.until_inputs, inner)
            if known is ABSENT or Expression(params.until).value(known):
                break
        return state

    def _map(self, operator, scope):
        params = operator.params
        self._demanded(params.over, scope)
        items = self._read(params.over, scope)
        if items is ABSENT:
            return ABSENT
        if not isinstance(items, list) or len(items) > params.max_items:
            raise OperatorFailed("no list")
        inner = [
            Scope(
                params.body,
                {f"{operator.name}.item": item, f"{operator.name}.index": number},
                scope,
                f"{scope.path}{operator.name}.{number}.",
            )
            for number, item in enumerate(items)
        ]
        for each in inner:
            self._demanded(params.result, each)
        values = [self._read(params.result, each) for each in inner]
        return [value for value in values if value is not ABSENT]
