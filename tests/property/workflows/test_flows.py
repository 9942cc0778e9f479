"""Rows E12 and H13 of the design: whatever the flow, the passes, the schedule and the crash, what
comes out is what a naive interpreter gives, byte for byte."""

import random
from zlib import crc32

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from kairos import flow
from kairos.workflows import FlowLimits, Generation, IssueCall, Passes
from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.graph import in_order
from kairos.workflows.compile.invalid import InvalidFlow, OperatorFailed
from kairos.workflows.compile.pipeline import compile_plan
from kairos.workflows.execute.commands import FailRow
from kairos.workflows.execute.facts import OperatorsOpened
from tests.support.examples import examples
from tests.support.simulate.standin import processed
from tests.support.workflows.flow_world import FlowWorld, Journal
from tests.support.workflows.naive import Naive

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0}, "list": {"type": "array"}},
    "required": ["n"],
}
LISTS = {
    "type": "object",
    "properties": {"list": {"type": "array", "items": {"type": "string"}}},
    "required": ["list"],
}
WORDS = ["yes", "no", "ok", "a b", ""]


def scripted(messages):
    """An engine whose answer is a function of the request. Some requests it cannot answer."""
    number = crc32(msgspec.json.encode(messages))
    if number % 13 == 0:
        raise ValueError("the engine refuses it")
    if number % 3 == 0:
        return msgspec.json.encode({"n": number % 5, "list": WORDS[: number % 4]}).decode()
    if number % 31 == 1:
        return '{"n": -1}'
    return WORDS[number % 5]


def answer(messages, attempt):
    """The same, of an engine that times out now and then."""
    if attempt == 1 and crc32(msgspec.json.encode(messages)) % 7 == 0:
        raise TimeoutError("no answer")
    return scripted(messages)


def for_naive(messages, params):
    assert isinstance(params, Generation)
    try:
        return scripted(messages)
    except ValueError as error:
        raise OperatorFailed(str(error)) from error


def number_of(kind, arguments):
    """The same for equal calls: how many texts are asked at once does not count."""
    return crc32(msgspec.json.encode([kind, {**arguments, "batch": None}]))


def scripted_processor(kind, arguments):
    """Processors whose answers are a function of what they are asked. Some they cannot do: some
    texts, however many are asked at once; or the whole."""
    if kind in ("embed", "ingest"):
        texts = arguments["texts"]
        each = [texts] if isinstance(texts, str) else texts
        refused = any(crc32(f"{kind} {text}".encode()) % 37 == 0 for text in each)
    else:
        refused = number_of(kind, arguments) % 17 == 0
    if refused:
        raise ValueError("the processor refuses it")
    return processed(kind, arguments)


def process(kind, arguments, attempt):
    """The same, of processors that time out now and then."""
    if attempt == 1 and number_of(kind, arguments) % 7 == 0:
        raise TimeoutError("no answer")
    return scripted_processor(kind, arguments)


def process_for_naive(kind, arguments):
    try:
        return scripted_processor(kind, arguments)
    except ValueError as error:
        raise OperatorFailed(str(error)) from error


FUNCTIONS = flow.Functions()


@FUNCTIONS.pure
def split(text):
    return str(text).split()


@FUNCTIONS.effect
def tell(text):
    return f"told {text}"


class Drawn:
    """A random flow, and how it came about."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.flow = flow.Flow("drawn", functions=FUNCTIONS)
        self.count = 0

    def name(self):
        self.count += 1
        return f"o{self.count}"

    def pick(self, operands):
        return self.random.choice(operands)

    def more(self, operands, depth, count):
        """So many operators more that may need these; returns all of them."""
        made = list(operands)
        for _ in range(count):
            kinds = [self.llm] * 4 + [self.format, self.call, self.filter, self.branch]
            kinds += [self.retrieve, self.retrieve, self.same]
            kinds += [self.loop, self.map] if depth < 2 else []
            made.append(self.pick(kinds)(made, depth))
        return made

    def how(self):
        on_error = self.pick(["fail", "skip", "default", "fail", "default"])
        return {"on_error": on_error, "default": "d", "retries": 1}

    def llm(self, made, depth):
        pick = self.random.choice
        text, bound = "", {}
        for at in range(self.random.randint(1, 2)):
            bound[f"x{at}"] = pick(made)
            text += pick(["{{ x%d }}|", "{%% if x%d %%}{{ x%d }}{%% endif %%}", "Q {{ x%d }}"])
            text = text.replace("%%", "%").replace("%d", str(at))
        if self.random.random() < 0.3:
            bound["many"] = self.random.sample(made, min(2, len(made)))
            text += "{{ many | join('-') }}"
        heat = pick([0, 0, 0, 1])
        schema = pick([None, None, SCHEMA])
        after = [pick(made)] if self.random.random() < 0.3 else []
        after = [each for each in after if "." not in each.reference.operator]
        return self.flow.llm(
            self.name(), text, temperature=heat, schema=schema, after=after, inputs=bound,
            **self.how(),
        )  # fmt: skip

    def format(self, made, depth):
        return self.flow.format(self.name(), "<{{ x }}>", x=self.pick(made))

    def same(self, made, depth):
        """An operator that gives what it is given, or its text."""
        name, of, f = self.name(), self.pick(made), self.flow
        ways = [
            lambda: f.format(name, "{{ x }}", x=of),
            lambda: f.filter(name, of, self.pick(["true", "1 < 2", "false"])),
            lambda: f.branch(name, "'yes'", {"yes": of, "no": self.pick(made)}),
            lambda: f.loop(name, of, unchanged, max_rounds=2),
        ]

        def unchanged(state):
            self.format([state], depth)  # which nobody needs
            return state

        return self.pick(ways)()

    def call(self, made, depth):
        function = self.pick([split, split, tell])
        return self.flow.call(self.name(), function, text=self.pick(made))

    def filter(self, made, depth):
        where = self.pick(["x != 'no'", "x is string", "x | length > 2"])
        return self.flow.filter(self.name(), self.pick(made), where, x=self.pick(made))

    def branch(self, made, depth):
        cases = {"yes": self.pick(made), "no": [self.pick(made), self.pick(made)]}
        other = {"otherwise": self.pick(made)} if self.random.random() < 0.7 else {}
        return self.flow.branch(self.name(), "x", cases, x=self.pick(made), **other)

    def retrieve(self, made, depth):
        """One of: passages, vectors, a collection, what is found, what is best of it."""
        pick, f = self.random.choice, self.flow
        text = f.format(self.name(), "{{ x }}{{ y }} of which {{ x }}", x=pick(made), y=pick(made))
        size = self.random.randint(1, 3)
        odd = self.random.random() < 0.1  # what is no text, often
        chunks = f.chunk(self.name(), pick(made) if odd else text, size=size, overlap=size - 1)
        how = pick([self.how(), {"on_error": "fail", "retries": 1}])  # the second: in stages
        vectors = f.embed(self.name(), chunks, batch=pick([1, 2, 16]), **how)
        named = pick([None, None, "docs"])
        store = f.ingest(self.name(), chunks, vectors, collection=named, **how)
        query = f.embed(self.name(), pick([text, chunks]), model=pick([None, "m"]), **self.how())
        within = named or pick([store, [store, store]])
        after = [store] if named else []
        found = f.search(
            self.name(), query, collection=within, top_k=pick([1, 3]), after=after, **self.how()
        )
        best = f.rerank(self.name(), text, pick([found, chunks]), top_k=2, **self.how())
        return pick([chunks, vectors, found, best, best, store if named else found])

    def loop(self, made, depth):
        name = self.name()
        first = f"o{self.count + 1}"  # of its body's operators, or nothing that is known there
        until = self.pick([None, "state == 'ok'", "round > 0", f"{first} == 'yes'"])

        def body(state, number):
            around = [*made[-2:], state, number]
            made_here = self.more(around, depth + 1, self.random.randint(1, 2))
            return made_here[-1]

        rounds = self.random.randint(1, 3)
        return self.flow.loop(name, self.pick(made), body, max_rounds=rounds, until=until)

    def map(self, made, depth):
        if self.random.random() < 0.5:
            over = self.flow.call(self.name(), split, text=self.pick(made))
        else:
            how = {**self.how(), "default": self.pick([{"list": ["x"]}, {"list": []}, "d"])}
            heat = self.pick([0, 0, 1])
            lists = self.flow.llm(
                self.name(),
                "List {{ x }}",
                schema=LISTS,
                temperature=heat,
                x=self.pick(made),
                **how,
            )
            over = lists["list"]

        def body(item):
            return self.more([*made[-2:], item], depth + 1, self.random.randint(1, 2))[-1]

        return self.flow.map(self.name(), over, body, max_items=self.pick([2, 10]))

    def whole(self, size):
        row = self.flow.input("row")
        made = self.more([row["a"], row["b"]], 0, size)
        if self.random.random() < 0.3:
            group = self.flow.group("g", "x", self.pick(made), x=self.pick(made))
            made = self.more([group["key"], group["items"]], 0, self.random.randint(1, 3))
        kept = [*made[-2:], self.pick(made)]
        for at, each in enumerate(kept):
            self.flow.output(f"c{at}", each)
        return self.flow.declaration


def drawn(seed, size):
    """None of a flow that is refused, for an effect that nothing needs."""
    declaration = Drawn(seed).whole(size)
    try:
        compile_plan(declaration)
    except InvalidFlow as refused:
        if "would never run" not in str(refused) and "until: it needs" not in str(refused):
            raise
        assume(False)
    return declaration


def functions():
    return {name: FUNCTIONS[name].function for name in FUNCTIONS}


def ahead(plan):
    """Operators that may be computed before it is known that they are needed."""
    maps = {name for each in plan.partial for name in each.maps}
    operators = every_operator(plan.declaration.operators)
    return {
        body.name for each in operators if each.name in maps for body in every_operator(each.body)
    }


def as_bytes(table):
    return msgspec.json.encode(sorted(table.items()))


FLOWS = st.builds(drawn, st.integers(0, 10**9), st.integers(1, 7))
ROWS = st.lists(
    st.fixed_dictionaries({"a": st.sampled_from(WORDS), "b": st.sampled_from(["ok", "x", None])}),
    max_size=8,
)
SWITCHED = {name: st.booleans() for name in Passes.__struct_fields__}
PASSES = st.builds(flow.Passes, **SWITCHED)
SEEDS = st.integers(0, 10**6)


@examples(300)
@given(FLOWS, ROWS, PASSES, SEEDS, st.lists(st.integers(0, 60), max_size=3))
def test_e12_h13_any_flow_passes_schedule_and_crashes_give_what_a_naive_interpreter_gives(
    declaration, rows, passes, seed, crashes
):
    naive = Naive(declaration, for_naive, functions(), process_for_naive).run(rows)
    plan, journal = compile_plan(declaration, passes), Journal()
    for crash_after in [*crashes, None]:
        limits = FlowLimits(capacity=1 + seed % 3, max_open_rows=1 + seed % 4)
        world = FlowWorld(
            plan, rows, answer, functions=functions(), process=process, journal=journal,
            limits=limits, seed=seed,
        )  # fmt: skip
        ended = world.run(crash_after)
        most = 2 * limits.capacity + limits.functions + limits.processors
        assert world.most_in_flight <= most
        assert world.most_open <= limits.max_open_rows
        for call in world.issued:
            # An operator is never before its inputs: they are in what it asks.
            asked = naive.calls.get((call.stage, call.node, call.row))
            failed = (call.stage, call.row) in naive.failed
            tried = call.operator in ahead(plan)  # of an item that was never said, maybe
            assert tried or asked == call.body["messages"] or (asked is None and failed)
        if ended:
            break
    if not (passes.cse or passes.cached or passes.decoding or crashes):
        made = {(e.stage, e.node, e.row) for e in world.issued}
        assert {k for k in made ^ set(naive.calls) if (k[0], k[2]) not in naive.failed} == set()
    assert world.end == "done"
    table = world.table()
    assert as_bytes(table["written"]) == as_bytes(naive.written)
    assert table["failed"] == set(naive.failed)
    assert table["dropped"] == naive.dropped
    assert len(journal.ended) == len(set(journal.ended))


@examples(60)
@given(FLOWS, ROWS, PASSES, SEEDS)
def test_the_same_seed_gives_the_same_log(declaration, rows, passes, seed):
    logs = []
    for _ in range(2):
        plan = compile_plan(declaration, passes)
        world = FlowWorld(plan, rows, answer, functions=functions(), process=process, seed=seed)
        world.run()
        logs.append(world.log)
    assert logs[0] == logs[1]


@examples(60)
@given(FLOWS, ROWS, SEEDS)
def test_e4_a_second_run_over_unchanged_rows_makes_no_deterministic_call(declaration, rows, seed):
    plan = compile_plan(declaration)
    first = FlowWorld(plan, rows, scripted_only, functions=functions(), seed=seed)
    first.run()
    again = Journal()
    again.cache = dict(first.journal.cache)
    second = FlowWorld(plan, rows, scripted_only, functions=functions(), journal=again, seed=seed)
    second.run()
    by_name = {each.name: each for each in every_operator(plan.declaration.operators)}
    called = [call for call in second.issued if by_name[call.operator].purity == "pure"]
    failed = {key for key, end in second.journal.ended.items() if isinstance(end, FailRow)}
    # What broke is not kept, and is asked again: rows fail, or have a default. So is what was begun
    # for items of a list, sampled or not, that broke as it was said.
    early, anew = ahead(plan), {(call.stage, call.row) for call in second.issued if broke(call)}
    for call in called:
        place = call.stage, call.row
        assert broke(call) or place in failed or (call.operator in early and place in anew)
    assert as_bytes(second.table()["written"]) == as_bytes(first.table()["written"])


def scripted_only(messages, attempt):
    return scripted(messages)


def broke(call):
    """Whether the engine, or the schema, refuses it."""
    try:
        text = scripted(call.body["messages"])
    except ValueError:
        return True
    schema = call.body.get("response_format")
    return (schema is not None and not text.startswith('{"n":')) or text == '{"n": -1}'


@examples(100)
@given(FLOWS, PASSES)
def test_passes_are_idempotent_and_keep_order_and_outputs(declaration, passes):
    plan = compile_plan(declaration, passes)
    # A body that nothing needs is empty in a plan; nobody may declare it so.
    repeated = ("loop", "map", "stages")
    operators = every_operator(plan.declaration.operators)
    assume(all(each.body for each in operators if each.kind in repeated))
    again = compile_plan(plan.declaration, passes)
    assert again.declaration == plan.declaration
    assert again.merged == {}
    assert again.pruned == ()
    assert plan.outputs == tuple(each.column for each in declaration.outputs)
    assert in_order(plan.declaration.operators) == plan.declaration.operators


class GatedWorld(FlowWorld):
    """Of one operator at a time calls may be issued, as where an engine has one model at a time."""

    def run(self, crash_after=None):
        assert crash_after is None
        self.opened, self.unasked = None, 0
        self._open(frozenset())
        self._do(self.executor.start())
        while self.end is None:
            if not self.pending or not self.random.randrange(5):
                wanted = [name for name, n in self.executor.gate.wanted.items() if n]
                assert wanted or self.pending, "nothing is under way, and it has not ended"
                self._open(frozenset(wanted and [self.random.choice(wanted)]))
                continue
            self._do(self.executor.handle(self.next_fact()))
        self.commit(len(self.written))

    def _open(self, operators):
        self.opened = operators
        self._do(self.executor.handle(OperatorsOpened(operators)))

    def _flies(self, command):
        if isinstance(command, IssueCall):
            self.unasked += command.operator not in self.opened
        super()._flies(command)


@examples(100)
@given(FLOWS, ROWS, PASSES, SEEDS)
def test_calls_that_are_held_for_their_model_change_nothing_of_what_comes_out(
    declaration, rows, passes, seed
):
    naive = Naive(declaration, for_naive, functions(), process_for_naive).run(rows)
    limits = FlowLimits(capacity=1 + seed % 3, max_open_rows=1 + seed % 4)
    plan = compile_plan(declaration, passes)
    world = GatedWorld(
        plan, rows, answer, functions=functions(), process=process, limits=limits, seed=seed
    )
    world.run()
    assert world.unasked == 0
    assert min(world.executor.gate.in_flight.values(), default=0) >= 0
    table = world.table()
    assert as_bytes(table["written"]) == as_bytes(naive.written)
    assert table["failed"] == set(naive.failed)
