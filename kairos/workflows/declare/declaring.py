"""`Flow`: a workflow declared in Python. Declaring one runs, reads and writes nothing."""

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature

from kairos.workflows.compile.invalid import InvalidFlow
from kairos.workflows.compile.operators import (
    ENGINE_RETRIES,
    Branch,
    Chunking,
    Constant,
    Data,
    Declaration,
    Embedding,
    Filter,
    Format,
    Generation,
    Group,
    Ingest,
    Input,
    Loop,
    MapOver,
    MessageTemplate,
    OnCut,
    OnError,
    Operator,
    Output,
    Params,
    Parse,
    Purity,
    Reference,
    RegisteredCall,
    Rerank,
    Role,
    Search,
)
from kairos.workflows.compile.pipeline import Passes, Plan, compile_plan
from kairos.workflows.compile.rewriting import Rewriting, rewritten
from kairos.workflows.declare.functions import Functions
from kairos.workflows.declare.operand import Operand, argument, constant, json_schema, used_by

_UNSET = object()


class Flow:
    """Declared workflow. Each method adds an operator, and returns an operand for its value.

    Keyword arguments bind the names in templates; `inputs` does so for a name that is a parameter
    here. Where an operator of retrieval takes an operand, a list of operands or a constant will do;
    for its values see `workflows/compile/retrieval.py`. `model`, `max_tokens`, `temperature`,
    `on_cut`: defaults of LLM calls. `passes`: the user's own.

    Any method raises InvalidFlow if its arguments are invalid; `compile` checks more.
    """

    def __init__(
        self,
        name: str,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        on_cut: OnCut = "error",
        functions: Functions | None = None,
        passes: Sequence[Rewriting] = (),
    ) -> None:
        # Of the flow, and of each open body, the innermost last.
        self._scopes: list[list[Operator]] = [[]]
        self.name, self._passes, self.functions = name, passes, functions or Functions()
        self._model, self._max_tokens, self._temperature = model, max_tokens, temperature
        self._on_cut = on_cut
        self._outputs: list[Output] = []

    @property
    def declaration(self) -> Declaration:
        assert len(self._scopes) == 1, "within a body"
        operators, outputs = tuple(self._scopes[0]), tuple(self._outputs)
        return rewritten(Declaration(self.name, operators, outputs), self._passes)

    def compile(self, passes: Passes | None = None, *, revision: str = "") -> Plan:
        """Compile the flow.

        Raises InvalidFlow: it cannot be run; the message says what would be right.
        """
        return compile_plan(self.declaration, passes, revision=revision)

    def input(self, name: str, *, columns: Sequence[str] = ()) -> Operand:
        """Declare the row of the table.

        `columns`: columns that it must have, in addition to columns in templates.
        """
        return self._add(name, Input(tuple(columns)))

    def data(self, name: str, value: object) -> Operand:
        """Declare a JSON value that is the same for every row."""
        constant = argument(self, name, value)
        if isinstance(constant, Constant):
            return self._add(name, Data(constant.value))
        raise InvalidFlow(name, "data is a constant, not what an operator gives")

    def format(
        self,
        name: str,
        template: str,
        *,
        inputs: Mapping[str, object] | None = None,
        **bound: object,
    ) -> Operand:
        """Declare a text made by a template."""
        return self._add(name, Format(template), inputs, bound)

    def llm(
        self,
        name: str,
        prompt: str | Sequence[tuple[Role, str]],
        *,
        system: str | None = None,
        model: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
        schema: object = None,
        on_cut: OnCut | None = None,
        parse: Parse = "strict",
        retries: int = ENGINE_RETRIES,
        on_error: OnError = "fail",
        default: object = None,
        after: Sequence[Operand] = (),
        inputs: Mapping[str, object] | None = None,
        **bound: object,
    ) -> Operand:
        """Declare a chat completion, of a prompt or of messages (role and template).

        Its value is a text, or with `schema` (JSON Schema, a Pydantic model, a msgspec or data
        class) JSON. `parse`: lenient also finds JSON in fences and prose.
        """
        messages: list[tuple[Role, str]] = [("system", system)] if system is not None else []
        messages += [("user", prompt)] if isinstance(prompt, str) else list(prompt)
        params = Generation(
            messages=tuple(MessageTemplate(role, text) for role, text in messages),
            model=model or self._model,
            max_tokens=max_tokens or self._max_tokens,
            temperature=self._temperature if temperature is None else temperature,
            top_p=top_p,
            seed=seed,
            stop=tuple(stop),
            schema=json_schema(name, schema),
            on_cut=on_cut or self._on_cut,
            parse=parse,
        )
        return self._add(name, params, inputs, bound, after, on_error, default, retries)

    def call(
        self,
        name: str,
        function: Callable[..., object] | str,
        *,
        purity: Purity | None = None,
        version: str = "",
        batched: bool = False,
        batch: int | None = None,
        partial: bool = False,
        cpus: int | None = None,
        retries: int = 0,
        on_error: OnError = "fail",
        default: object = None,
        after: Sequence[Operand] = (),
        inputs: Mapping[str, object] | None = None,
        **bound: object,
    ) -> Operand:
        """Declare a call of a Python function, with arguments by name.

        A function that is not registered yet is registered with this purity, by default `effect`.
        `batched`: waiting calls are made together, at most `batch`; the function gets each argument
        as a list, and returns a list. `partial`: it returns a list of parts of a text, and may be
        called on a prefix of a model's answer: all parts but the last are passed on to a `map` or
        `embed` at once. `cpus`: it computes for long, and a run on Ray gives each call these CPUs
        of any host; elsewhere it is called in a thread.
        """
        function = self.functions.known_as(function, purity or "effect", version, batched=batched)
        known = self.functions[function]
        if purity not in (None, known.purity):
            raise InvalidFlow(name, f"'{function}' is registered as {known.purity}")
        params = RegisteredCall(
            function, known.purity, known.version, known.batched, batch, partial, cpus
        )
        return self._add(name, params, inputs, bound, after, on_error, default, retries)

    def filter(
        self,
        name: str,
        of: Operand,
        where: str,
        *,
        inputs: Mapping[str, object] | None = None,
        **bound: object,
    ) -> Operand:
        """Declare a filter: the value of `of` if the expression is true.

        Otherwise it is absent, and so are operators that need it; a row without any output is not
        written.
        """
        params = Filter(where, argument(self, name, of))
        return self._add(name, params, inputs, bound)

    def branch(
        self,
        name: str,
        on: str,
        cases: Mapping[str, object],
        *,
        otherwise: object = _UNSET,
        inputs: Mapping[str, object] | None = None,
        **bound: object,
    ) -> Operand:
        """Declare a choice: the case that the expression names.

        Other cases are not computed for it.
        """
        params = Branch(
            on,
            {case: argument(self, name, value) for case, value in cases.items()},
            None if otherwise is _UNSET else argument(self, name, otherwise),
        )
        return self._add(name, params, inputs, bound)

    def loop(
        self,
        name: str,
        start: object,
        body: Callable[..., Operand],
        *,
        max_rounds: int,
        until: str | None = None,
        **bound: object,
    ) -> Operand:
        """Declare a loop: `body` of its own result, at first of `start`, until `until` is true.

        The expression `until` can use `state`, the latest result, `round`, from 0 on, and the
        body's operators by name. A `body` with a second parameter gets the round, too.
        """
        number, operators, result = self._body(name, ("state", "round"), body)
        within = {each.name: Operand(self, Reference(each.name)) for each in operators}
        known = {**within, "state": result, "round": number, **bound}
        until_inputs = used_by(self, name, until, known)
        params = Loop(
            argument(self, name, start),
            operators,
            result.reference,
            max_rounds,
            until,
            until_inputs,
        )
        return self._add(name, params)

    def map(
        self, name: str, over: Operand, body: Callable[..., Operand], *, max_items: int = 1_000
    ) -> Operand:
        """Declare a map: `body` of each item of a list, with results in the same order.

        A `body` with a second parameter gets the item's position, too.
        """
        _, operators, result = self._body(name, ("item", "index"), body)
        params = MapOver(argument(self, name, over), operators, result.reference, max_items)
        return self._add(name, params)

    def group(
        self,
        name: str,
        by: str,
        value: Operand,
        *,
        inputs: Mapping[str, object] | None = None,
        **bound: object,
    ) -> Operand:
        """Declare a group of rows with the same key: `key`, and `items`, the rows' values in order.

        Operators that need it are computed once a group, after all rows.
        """
        params = Group(by, argument(self, name, value))
        return self._add(name, params, inputs, bound)

    def chunk(
        self,
        name: str,
        text: object,
        *,
        size: int = Chunking().size,
        overlap: int = Chunking().overlap,
        after: Sequence[Operand] = (),
    ) -> Operand:
        """Declare passages of `size` words of a text, or of texts, as a list.

        Each shares `overlap` words with the one before.
        """
        return self._add(name, Chunking(size, overlap), {"text": text}, after=after)

    def embed(
        self,
        name: str,
        texts: object,
        *,
        model: str | None = None,
        batch: int | None = None,
        retries: int = ENGINE_RETRIES,
        on_error: OnError = "fail",
        default: object = None,
        after: Sequence[Operand] = (),
    ) -> Operand:
        """Embed a text, or each of a list of texts, `batch` at a time.

        By default a batch is what `kairos profile` found best, else 16 texts.
        """
        params, inputs = Embedding(model, batch), {"texts": texts}
        return self._add(name, params, inputs, {}, after, on_error, default, retries)

    def ingest(
        self,
        name: str,
        texts: object,
        vectors: object,
        *,
        collection: str | None = None,
        batch: int | None = None,
        retries: int = ENGINE_RETRIES,
        on_error: OnError = "fail",
        default: object = None,
        after: Sequence[Operand] = (),
    ) -> Operand:
        """Declare a collection of this row, to be searched; or additions to a named one.

        For a named collection, the value is its name (`collection`) and the `count` of passages,
        which are added `batch` at a time.
        """
        params, inputs = Ingest(collection, batch), {"texts": texts, "vectors": vectors}
        return self._add(name, params, inputs, {}, after, on_error, default, retries)

    def search(
        self,
        name: str,
        vectors: object,
        *,
        collection: object,
        top_k: int = Search().top_k,
        retries: int = ENGINE_RETRIES,
        on_error: OnError = "fail",
        default: object = None,
        after: Sequence[Operand] = (),
    ) -> Operand:
        """Declare a search: the `top_k` passages nearest to any of some vectors, best first.

        The value is a list of `text` and `score`. `vectors`: one, or a list. `collection`: a value
        of `ingest`, a list of such, or the name of a collection that outlives the run.
        """
        inputs = {"vectors": vectors}
        named = collection if isinstance(collection, str) else None
        if named is None:
            inputs["collection"] = collection
        return self._add(name, Search(top_k, named), inputs, {}, after, on_error, default, retries)

    def rerank(
        self,
        name: str,
        query: object,
        passages: object,
        *,
        top_k: int = Rerank().top_k,
        model: str | None = None,
        batch: int | None = None,
        retries: int = ENGINE_RETRIES,
        on_error: OnError = "fail",
        default: object = None,
        after: Sequence[Operand] = (),
    ) -> Operand:
        """Declare a ranking: the `top_k` passages that answer the query best, best first.

        The passages are texts, or a value of `search`; the value is a list of `text` and `score`.
        `batch` passages are ranked at a time.
        """
        params, inputs = Rerank(top_k, model, batch), {"query": query, "passages": passages}
        return self._add(name, params, inputs, {}, after, on_error, default, retries)

    def output(self, column: str, value: object) -> None:
        """Declare a column of the output table."""
        self._outputs.append(Output(column, argument(self, f"output {column}", value)))

    def _add(
        self,
        name: str,
        params: Params,
        inputs: Mapping[str, object] | None = None,
        bound: Mapping[str, object] = {},
        after: Sequence[Operand] = (),
        on_error: OnError = "fail",
        default: object = None,
        retries: int = 0,
    ) -> Operand:
        given = {**(inputs or {}), **bound}
        operator = Operator(
            name=name,
            params=params,
            inputs={key: argument(self, name, value) for key, value in given.items()},
            after=tuple(each.reference.operator for each in after),
            on_error=on_error,
            default=constant(name, default),
            retries=retries,
        )
        self._scopes[-1].append(operator)
        return Operand(self, Reference(name))

    def _body(
        self, name: str, names: tuple[str, str], body: Callable[..., Operand]
    ) -> tuple[Operand, tuple[Operator, ...], Operand]:
        first, second = (Operand(self, Reference(f"{name}.{each}")) for each in names)
        self._scopes.append([])
        parameters = signature(body).parameters.values()
        wanted = sum(each.default is Parameter.empty for each in parameters)
        try:
            result = body(*(first, second)[:wanted])
        finally:
            operators = self._scopes.pop()
        if not isinstance(result, Operand):
            raise InvalidFlow(name, "its body returns what one of its operators gives", key="body")
        return second, tuple(operators), result
