"""Refusals of a run on Ray before it begins, and the parts that rows are in."""

import asyncio
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import SetupError
from kairos.settings import RetrievalSettings
from kairos.workflows import Functions
from kairos.workflows.execute.flights import ResultMemo
from kairos.workflows.ray.claims import PartitionClaims
from kairos.workflows.ray.partition import PartTable
from kairos.workflows.run.run_store import RunStore
from kairos.workflows.run.tables import open_table
from kairos.workflows.start.run_task import check_task, new_record
from tests.support.examples import examples
from tests.support.workflows.declared import read_yaml

FLOW = """
flow: one
operators:
  row: {kind: input}
  said: {kind: llm, prompt: "{{ row.text }}"}
  cut: {kind: chunk, inputs: {text: row.text}}
  vectors: {kind: embed, inputs: {texts: cut}}
  kept: {kind: ingest, inputs: {texts: cut, vectors: vectors}, collection: docs}
outputs: {said: said, kept: kept}
"""


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"on": "ray"}, "local-ray for a Ray"),
        ({"on": "ray://"}, "local-ray for a Ray"),
        ({"on": "ray://head:10001"}, "--results"),
        ({"on": "local-ray", "results": "sqlite:///x"}, "--results: write"),
        ({"on": "local-ray", "results": "postgresql://a:secret@h/x"}, "PGPASSWORD"),
        ({"on": "local-ray", "bus": "kafka://x:1"}, "no longer kept on Kafka"),
        ({"on": "local-ray", "host": "host.toml"}, "--host and --on"),
        (
            {
                "on": "ray://head:10001",
                "results": "postgresql://h/x",
                "retrieval": RetrievalSettings(collections="/x"),
            },
            "operator 'kept'",
        ),
    ],
)
def test_what_a_run_on_ray_cannot_do_is_refused_with_what_to_do(tmp_path, fields, said):
    declaration = read_yaml(FLOW)
    record = new_record(
        RunStore(tmp_path),
        declaration,
        out=str(tmp_path / "out.jsonl"),
        **({"url": "http://x"} | fields),
    )
    with pytest.raises(SetupError) as refused:
        check_task(record, declaration, Functions(), [{"text": "a"}])
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


@examples(60)
@given(
    st.lists(
        st.fixed_dictionaries({"a": st.integers(0, 3), "b": st.text(max_size=2)}), max_size=300
    ),
    st.integers(1, 5),
    st.sampled_from([None, ("a",), ("a", "b")]),
)
def test_each_row_is_in_one_part_with_its_number_in_the_whole_table(rows, parts, columns):
    found = []
    for part in range(parts):
        own = list(PartTable(open_table(rows), part, parts, columns).rows())
        assert [row.number for row in own] == sorted(row.number for row in own)
        found += [(row.number, row.values) for row in own]
    assert sorted(found, key=lambda each: each[0]) == list(enumerate(rows))


class Asked:
    """A coordinator that takes a moment for each message, and lets all calls be made."""

    def __init__(self):
        self.claim = self
        self.messages, self.answers = 0, []

    async def remote(self, partition, epoch, signatures, answers):
        self.messages += 1
        self.answers += answers
        await asyncio.sleep(0.001)
        return [True] * len(signatures)


async def test_calls_that_come_one_by_one_are_asked_about_together():
    asked, begun, loop = Asked(), [], asyncio.get_running_loop()
    claims = PartitionClaims(asked, 0)
    following = asyncio.create_task(claims.follow())
    began_s = loop.time()
    for call in range(300):
        claims.ask(call, f"signature {call}", begun.append)
        claims.record_answer(f"signature {call - 100}", b"1")
        await asyncio.sleep(0.001)
    async with asyncio.timeout(60):
        while len(begun) < 300:
            await asyncio.sleep(0.01)
    took_s = loop.time() - began_s
    following.cancel()
    assert begun == [None] * 300
    assert asked.messages <= 2 + 2 * took_s / 0.05, "a wait before each of them"
    await claims.settle()
    assert len(asked.answers) == len(set(asked.answers)) > 0


def test_answers_take_no_more_memory_than_they_may_with_what_finds_them():
    answers, limit_bytes = ResultMemo(4 << 20), 4 << 20
    tracemalloc.start()
    for n in range(60_000):
        answers.put(f"{n:032}", b"%040d" % n)
        assert answers.get(f"{0:032}") is not None, "it was asked for all the time"
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert limit_bytes / 2 < taken < 1.5 * limit_bytes
    kept = [n for n in range(60_000) if answers.get(f"{n:032}") is not None]
    assert kept == [0, *range(60_000 - len(kept) + 1, 60_000)]
    answers.put(f"{0:032}", b"another")
    assert answers.get(f"{0:032}") == (b"0" * 40,)
