"""Both stores of results, on files and in a real PostgreSQL, compared with a naive one."""

import random
import secrets
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import SetupError
from kairos.workflows.execute.facts import Known
from kairos.workflows.run import postgres_results
from kairos.workflows.run.journal import RunJournal
from kairos.workflows.run.postgres_results import LARGE_BYTES, PostgresResults
from kairos.workflows.run.result_cache import ResultCache
from kairos.workflows.run.result_store import FailedRow, Resumed
from tests.support.examples import examples
from tests.support.postgres import postgres_server

LIMIT_S = 60


@pytest.fixture(scope="module")
def server():
    with postgres_server() as running:
        yield running


def quiet(line):
    assert line is None, line


class OnFiles:
    def __init__(self, folder, _server):
        self.folder, self.names = folder, iter(range(10**9))

    def run(self):
        return self.folder / f"run{next(self.names)}"

    def open(self, run, partition=None, told=quiet):
        cache = ResultCache(self.folder / "cache.sqlite", "us")
        return RunJournal(run, told, cache=cache, partition=partition)


class InPostgres:
    def __init__(self, _folder, server):
        self.url = server.url

    def run(self):
        return f"run-{secrets.token_hex(8)}"  # Hypothesis seeds `random`

    def open(self, run, partition=None, told=quiet):
        return PostgresResults(self.url, run, told, partition=partition)


@pytest.fixture(params=[OnFiles, InPostgres])
def place(request, tmp_path, server):
    return request.param(tmp_path, server)


def found(store, signature):
    """Wait for what it answers."""
    answered, got = threading.Event(), []
    store.find(1, signature, lambda each: (got.append(each), answered.set()))
    assert answered.wait(LIMIT_S)
    return got[0]


class NaiveStore:
    """Everything in dicts."""

    def __init__(self):
        self.answers, self.results, self.ends = {}, {}, {}

    def keep(self, row, node, signature, value, shared, until_end):
        if shared and not until_end:
            value = self.answers.setdefault(signature, value)
        known = self.results.get((row, node))
        if known is None or known[0].signature != signature:
            self.results[row, node] = Known(signature, value), until_end

    def end(self, row, outcome, digest, value, node, key):
        known = self.ends.get(row)
        if known is None or known[1] != digest or known[0] == "failed":
            self.ends[row] = outcome, digest, value, node, key
        if outcome != "failed":
            for place in [each for each in self.results if each[0] == row]:
                if self.results[place][1]:
                    del self.results[place]

    def resumed(self, rows):
        made = {}
        for row in rows:
            outcome, digest = self.ends.get(row, ("failed", None))[:2]
            results = {n: kept for (r, n), (kept, _) in self.results.items() if r == row}
            made[row] = Resumed(None if outcome == "failed" else digest, results)
        return made

    def has_ended(self, row):
        return self.ends.get(row, ("failed",))[0] != "failed"

    def ended(self, outcome):
        return [(row, *self.ends[row]) for row in sorted(self.ends) if self.ends[row][0] == outcome]

    def groups(self):
        made = {}
        for _, _, _, value, _, key in self.ended("gathered"):
            made.setdefault(key, []).append(value)
        return list(made.items())


VALUES = st.sampled_from([None, 0, "a", ["b", {"c": 1.5}], {"d": "\0 é"}, "x" * (LARGE_BYTES + 9)])
KEEPS = st.tuples(
    st.just("keep"), st.integers(0, 4), st.sampled_from("ab"), st.sampled_from(["s", "t"]),
    VALUES, st.booleans(), st.booleans(),
)  # fmt: skip
OUTCOMES = ["written", "failed", "dropped", "gathered"]
ENDS = st.tuples(
    st.just("end"), st.integers(0, 4), st.sampled_from(OUTCOMES),
    st.sampled_from([b"d1", b"d2"]), VALUES, st.sampled_from(["a", None]),
    st.sampled_from(["k", "l\0", "é"]),
)  # fmt: skip
CHANGES = st.lists(st.one_of(KEEPS, ENDS, st.just(("settle",)), st.just(("reopen",))), max_size=30)


def compare(place, changes):
    run, naive = place.run(), NaiveStore()
    stores = [place.open(run)]
    try:
        assert stores[-1].is_empty()
        for name, *change in changes:
            apply(stores[-1], naive, name, change)
            if name == "reopen":
                stores[-1].close()
                stores.append(place.open(run))
        stores[-1].settle()
        check(stores[-1], naive)
    finally:
        stores[-1].close()


def apply(store, naive, name, change):
    if name == "keep":
        row, node, signature, value, shared, until_end = change
        signature = f"{signature} {until_end}"  # one signature either passes or stays
        if until_end and naive.has_ended(row):
            return  # nobody keeps for later what only its row's end waits for
        naive.keep(row, node, signature, value, shared, until_end)
        store.keep_result(0, row, node, signature, value, shared=shared, until_end=until_end)
    elif name == "end":
        row, outcome, digest, value, node, key = change
        node = node if outcome == "failed" else None
        key = key if outcome == "gathered" else None
        naive.end(row, outcome, digest, value, node, key)
        store.end_row(0, row, outcome, digest, value, node=node, key=key)
    else:
        store.settle()


def check(store, naive):
    assert store.resumed(0, range(5)) == naive.resumed(range(5))
    assert list(store.written(0, 5)) == [(e[0], e[3]) for e in naive.ended("written")]
    assert list(store.failed(0, 5)) == [FailedRow(e[0], e[4], e[3]) for e in naive.ended("failed")]
    numbered = [(number, *group) for number, group in enumerate(naive.groups())]
    assert list(store.groups(5)) == numbered
    assert list(store.groups(5, part=1, parts=2)) == numbered[1::2]
    counts = {name: len(naive.ended(name)) for name in OUTCOMES}
    assert store.outcomes(0, 5) == {name: n for name, n in counts.items() if n}
    assert store.is_empty() == (not naive.results and not naive.ends)


@examples(25)
@given(changes=CHANGES)
def test_whatever_is_kept_is_what_a_naive_store_has_on_files(changes, tmp_path_factory):
    compare(OnFiles(tmp_path_factory.mktemp("files"), None), changes)


@examples(25)
@given(changes=CHANGES)
def test_whatever_is_kept_is_what_a_naive_store_has_in_postgres(changes, server):
    compare(InPostgres(None, server), changes)


def test_an_answer_is_found_by_other_runs_and_the_first_one_stays(place):
    first, second = place.open(place.run()), place.open(place.run())
    assert found(first, "s of this test") is None
    first.store("s of this test", {"a": [1]})
    first.settle()
    first.close()
    second.store("s of this test", "another")
    second.settle()
    again = place.open(place.run())
    assert found(again, "s of this test").value == {"a": [1]}
    for each in (second, again):
        each.close()


def test_whoever_opens_a_partition_later_has_it_and_the_one_before_writes_nothing_more(place):
    run = place.run()
    first, other = place.open(run, partition=0), place.open(run, partition=1)
    first.end_row(0, 0, "written", b"d", {"by": "first"})
    first.settle()
    second = place.open(run, partition=0)
    assert second.epoch == first.epoch + 1
    first.end_row(0, 1, "written", b"d", {"by": "one that is gone"})
    with pytest.raises(Exception, match=r"another process writes|another process has this part"):
        first.settle()
    second.end_row(0, 2, "written", b"d", {"by": "second"})
    other.end_row(0, 3, "written", b"d", {"by": "other"})
    second.settle()
    other.settle()
    assert [(row, value["by"]) for row, value in other.written(0, 9)] == [
        (0, "first"), (2, "second"), (3, "other")
    ]  # fmt: skip
    for each in (first, second, other):
        each.close(give_up=True)


def test_many_that_write_the_same_answers_do_not_wait_for_each_other(place):
    stores = [place.open(place.run()) for _ in range(4)]
    signatures = [f"same {n}" for n in range(300)]
    for store in stores:
        for signature in random.sample(signatures, 300):
            store.store(signature, signature)
            store.keep_result(0, 1, "a", signature, signature, shared=True)
    for store in stores:
        store.settle()
        store.close()


def test_while_the_database_is_away_writers_wait_and_nothing_is_lost(server, monkeypatch):
    monkeypatch.setattr(postgres_results, "RETRY_S", 0.05)
    told = []
    store = InPostgres(None, server).open("away", told=told.append)
    store.end_row(0, 0, "written", b"d", {"n": 0})
    store.settle()
    server.stop()
    store.end_row(0, 1, "written", b"d", {"n": 1})
    until = time.monotonic() + LIMIT_S
    while not told:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert store.backlog == 1
    server.start()
    store.end_row(0, 2, "written", b"d", {"n": 2})
    store.settle()
    assert told[-1] is None
    assert [value["n"] for _, value in store.written(0, 9)] == [0, 1, 2]
    store.close()


def test_a_run_that_is_forgotten_leaves_nothing_but_answers(server):
    store = InPostgres(None, server).open("gone")
    store.keep_result(0, 0, "a", "s", "x" * (LARGE_BYTES + 1), shared=False)
    store.end_row(0, 0, "written", b"d", {})
    store.store("left", 1)
    store.settle()
    store.forget()
    assert store.is_empty()
    assert found(store, "left").value == 1
    store.close()


def test_a_database_that_is_not_there_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(SetupError, match="results cannot be kept in postgresql"):
        PostgresResults("postgresql://127.0.0.1:1/no", "run", quiet)
