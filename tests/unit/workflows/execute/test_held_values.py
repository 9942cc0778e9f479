"""Values that stay with processors: an executor passes their ids on, and has what is lost made
again, once; whatever dies, the table is that of one step after the other."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.flow import Flow
from kairos.workflows import FlowLimits, Passes, RunProcessor
from kairos.workflows.compile.held import held_at, held_id, held_in, held_text
from kairos.workflows.compile.pipeline import compile_plan
from kairos.workflows.execute.commands import KeepResult, WriteRow
from kairos.workflows.execute.executor import Executor
from kairos.workflows.execute.facts import CallAnswered, CallBroke, Known, RowRead, Stays
from tests.support.examples import examples
from tests.support.simulate.standin import processed
from tests.support.workflows.flow_world import FlowWorld
from tests.support.workflows.naive import Naive
from tests.unit.workflows.execute.test_retrieval import TEXT, ask, rows


def says(messages, attempt=1):
    return f"said {messages[-1]['content']}"


class Hosts:
    """Two processors, which hold values by place and id until they die."""

    def __init__(self):
        self.held = {}  # (place, id) -> value
        self.done = []  # what was asked and done

    def die(self, place):
        self.held = {at: value for at, value in self.held.items() if at[0] != place}

    def do(self, command, place):
        wanted = set(held_in(command.arguments))
        assert wanted <= set(command.held), "each has a place"
        lost = tuple(each for each in wanted if (command.held[each], each) not in self.held)
        if lost:
            return CallBroke(command.call, "lost", retry=True, lost=lost)
        self.done.append(command)
        values = {each: self.held[command.held[each], each] for each in wanted}
        value = processed(command.kind, filled(command.arguments, values))
        if not command.stays:
            return CallAnswered(command.call, value)
        self.held[place, command.signature] = value
        return CallAnswered(command.call, Stays(place, 100))


def filled(arguments, values):
    def of(value):
        if isinstance(value, list):
            return [of(each) for each in value]
        return values.get(held_id(value), value) if isinstance(value, str) else value

    return {name: of(value) for name, value in arguments.items()}


class HeldWorld(FlowWorld):
    """`deaths`: before how many of so many tasks a processor dies."""

    def __init__(self, plan, table, hosts, *, deaths=0.0, **kwargs):
        super().__init__(plan, table, says, **kwargs)
        self.hosts, self._deaths = hosts, deaths

    def _processed(self, command):
        def now():
            if self.random.random() < self._deaths:
                self.hosts.die(self.random.choice("ab"))
            return self.hosts.do(command, self.random.choice("ab"))

        return now

    def next_fact(self):
        fact = super().next_fact()
        return fact() if callable(fact) else fact


def plan_of(flow, **passes):
    return compile_plan(flow.declaration, Passes(**passes), values_stay=True)


def world(flow, table, hosts=None, *, passes=None, **kwargs):
    made = HeldWorld(plan_of(flow, **(passes or {})), table, hosts or Hosts(), **kwargs)
    assert made.run()
    return made


def expected(flow, table):
    return Naive(flow.declaration, says).run(table).written


def test_what_only_processors_need_stays_and_the_rest_does_not():
    assert plan_of(ask(), stages=False).staying == {"vectors", "store", "question"}
    assert compile_plan(ask().declaration).staying == frozenset()
    f = ask()
    f.output("raw", f.embed("shown", "a text"))
    assert "shown" not in plan_of(f, stages=False).staying


def test_parts_that_are_ingested_batch_by_batch_stay():
    plan = plan_of(ask())
    assert plan.staying == {"vectors_part", "store_part", "question"}


@pytest.mark.parametrize("use", ["format", "map", "default", "group"])
def test_a_value_that_anyone_else_needs_does_not_stay(use):
    f = Flow("f")
    row = f.input("row")
    if use == "default":
        vector = f.embed("v", row["text"], on_error="default", default="AAAAAA==")
    else:
        vector = f.embed("v", row["text"])
    near = f.search("near", vector, collection="docs")
    if use == "format":
        f.output("said", f.format("said", "{{ v }}", v=vector))
    elif use == "map":
        f.output("each", f.map("each", vector, lambda item: f.format("x", "{{ i }}", i=item)))
    elif use == "group":
        group = f.group("g", by="row.text", value=vector, row=row)
        f.output("all", group["items"])
        near = None
    if near is not None:
        f.output("near", near)
    assert plan_of(f).staying == frozenset()


def test_no_vector_reaches_the_executor_and_the_journal_has_where_each_is():
    hosts, table = Hosts(), rows(3, questions=3)
    ran = world(ask(), table, hosts)

    assert ran.table()["written"] == expected(ask(), table)
    kept = [each for each in ran.log if isinstance(each, KeepResult) and each.until_end]
    assert kept
    for each in kept:
        value_id, place = held_at(each.value)
        assert (value_id, place in "ab") == (each.signature, True)
    asked = [each for each in ran.log if isinstance(each, RunProcessor)]
    vectors = [each.arguments["vectors"] for each in asked if "vectors" in each.arguments]
    assert all(map(held_id, vectors))
    assert {each.kind for each in asked if each.stays} == {"embed", "ingest"}


def test_what_is_held_is_dropped_when_the_last_row_that_needs_it_has_ended():
    hosts, table = Hosts(), rows(6, questions=3)
    ran = world(ask(), table, hosts)
    dropped = {(each.place, each.value_id) for each in ran.dropped}
    assert dropped == set(hosts.held)
    done = [each.signature for each in hosts.done]
    assert len(done) == len(set(done)), "rows that are open share what stays"


def test_what_a_dead_processor_held_is_made_again_once_and_kept_once():
    hosts = Hosts()

    class Dies(HeldWorld):
        def _processed(self, command):
            if command.kind == "search" and not self.died:
                self.died = True
                self.before = len(self.hosts.done)
                self.hosts.held.clear()
            return self.hosts.do(command, "a")

    ran = Dies(plan_of(ask(), stages=False), rows(), hosts)
    ran.died = False
    assert ran.run()
    assert ran.table()["written"] == expected(ask(), rows())
    again = [each.kind for each in hosts.done[ran.before :]]
    assert sorted(again) == ["embed", "embed", "ingest", "rerank", "search"]
    kept = [(each.node, each.row) for each in ran.log if isinstance(each, KeepResult)]
    assert len(kept) == len(set(kept))


def test_another_row_does_not_wait_for_what_was_made_again_for_a_row_that_failed():
    f = Flow("f")
    row = f.input("row")
    store = f.ingest("store", row["text"], f.embed("vectors", row["text"]))
    question = f.embed("question", row["question"])
    f.output("near", f.search("near", question, collection=store, top_k=1))
    f.output("other", f.rerank("other", row["question"], row["text"], top_k=1))
    executor = Executor(plan_of(f, stages=False, cached=False), FlowLimits(capacity=2))
    executor.start()
    asked = {}

    def tell(fact):
        new = calls(executor.handle(fact))
        asked.update({each.operator: each for each in new})
        return [each.operator for each in new]

    def stays(operator):
        return tell(CallAnswered(asked[operator].call, Stays("a", 100)))

    def broke(operator, **why):
        return tell(CallBroke(asked[operator].call, "gone", **why))

    def until_it_searches(number):
        tell(RowRead(number, {"text": ["a"], "question": "q"}))
        stays("vectors")
        return stays("question") + stays("store")

    assert until_it_searches(0) == ["near"]
    assert broke("near", retry=True, lost=(asked["store"].signature,)) == ["store"]
    assert broke("store", retry=True, lost=(asked["vectors"].signature,)) == ["vectors"]
    assert broke("other", retry=False) == []  # the row fails
    assert broke("vectors", retry=True) == []  # nobody wants it any more
    assert until_it_searches(1) == ["near"]


def test_where_a_value_is_now_counts_not_where_an_earlier_session_had_it():
    f = Flow("f")
    row = f.input("row")
    vectors = f.embed("vectors", row["text"])
    f.output("stored", f.ingest("stored", row["text"], vectors, collection="docs"))
    executor = Executor(plan_of(f, stages=False, cached=False), FlowLimits(capacity=2))
    executor.start()
    given = {"text": ["a"]}
    (made,) = calls(executor.handle(RowRead(0, given)))
    (first,) = calls(executor.handle(CallAnswered(made.call, Stays("b", 100))))
    known = {"vectors": Known(made.signature, held_text(made.signature, "a"))}
    (second,) = calls(executor.handle(RowRead(1, given, known)))
    assert first.held == second.held == {made.signature: "b"}


def calls(commands):
    return [each for each in commands if isinstance(each, RunProcessor)]


def in_each():
    """Several collections, each of parts where stages are cut, searched as one."""
    f = Flow("f")
    row = f.input("row")

    def store(text):
        chunks = f.chunk("chunks", text, size=2, overlap=0)
        return f.ingest("store", chunks, f.embed("vectors", chunks, batch=2))

    stores = f.map("stores", row["texts"], store)
    question = f.embed("question", row["question"])
    f.output("near", f.search("near", question, collection=stores, top_k=3))
    return f


@pytest.mark.parametrize("staged", [False, True])
def test_collections_of_a_map_are_searched_as_one_also_where_each_has_parts_that_stay(staged):
    texts = [TEXT, f"{TEXT} and some more"]
    table = [{"texts": texts, "question": "q"}]
    hosts = Hosts()
    ran = world(in_each(), table, hosts, passes={"stages": staged})
    assert ran.table()["written"] == expected(in_each(), table)
    (search,) = (each for each in hosts.done if each.kind == "search")
    parts = 2 + 3  # batches of two of their passages, of which there are four and five
    assert len(search.arguments["collection"]) == (parts if staged else 2)
    assert all(map(held_id, search.arguments["collection"]))


def many_questions():
    f = Flow("f")
    row = f.input("row")
    store = f.ingest("store", row["text"], f.embed("vectors", row["text"]))
    asked = f.map("asked", row["questions"], lambda text: f.embed("question", text))
    f.output("near", f.search("near", asked, collection=store, top_k=2))
    return f


@pytest.mark.parametrize("after", range(2, 10))
def test_a_run_goes_on_with_processors_of_their_own_after_some_in_its_process(after):
    table = [{"text": ["a", "b"], "questions": ["q", "r", "s"]}]
    before = HeldWorld(compile_plan(many_questions().declaration), table, Hosts())
    before.run(crash_after=after)
    before.commit(len(before.written))
    ran = world(many_questions(), table, journal=before.journal)
    assert ran.table()["written"] == expected(many_questions(), table)


def test_a_value_that_is_lost_each_time_fails_its_row_in_the_end():
    class Forgets(Hosts):
        def do(self, command, place):
            answered = super().do(command, place)
            self.held.clear()
            return answered

    ran = world(ask(), rows(), Forgets())
    assert ran.end == "done"
    assert ran.table()["failed"] == {(0, 0)}


def test_what_a_row_says_to_be_held_has_no_place():
    f = Flow("f")
    row = f.input("row")
    f.output("near", f.search("near", row["vector"], collection="docs"))
    asked = []

    class Takes(Hosts):
        def do(self, command, place):
            asked.append(command.held)
            return CallBroke(command.call, "it is held nowhere", retry=False)

    ran = world(f, [{"vector": held_text("0" * 32)}], Takes())
    assert asked == [{}]
    assert ran.table()["failed"] == {(0, 0)}


@examples(150)
@given(
    seed=st.integers(0, 1 << 32),
    deaths=st.sampled_from([0.0, 0.05, 0.2]),
    crashes=st.lists(st.integers(0, 60), max_size=3),
    staged=st.booleans(),
    share=st.booleans(),
)
def test_whatever_dies_the_table_is_that_of_one_step_after_the_other(
    seed, deaths, crashes, staged, share
):
    table, hosts = rows(5, questions=3), Hosts()
    plan, journal = plan_of(ask(), stages=staged, cse=share), None
    limits = FlowLimits(capacity=4)
    for after in (*crashes, None):
        ran = HeldWorld(
            plan, table, hosts, deaths=deaths, journal=journal, seed=seed, limits=limits
        )
        if ran.run(crash_after=after):
            break
        journal = ran.journal
        if random.Random(seed + after).random() < 0.3:
            hosts.die("a")
    found = ran.table()
    wanted = expected(ask(), table)
    assert found["failed"] | set(found["written"]) == set(wanted)
    assert all(wanted[row] == values for row, values in found["written"].items())
    assert deaths == 0.2 or not found["failed"]
    assert all(isinstance(each, WriteRow) for each in ran.journal.ended.values()) or deaths == 0.2
