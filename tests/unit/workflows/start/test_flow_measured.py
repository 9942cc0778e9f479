"""Efficient batches, measured: curves of drawn costs against a naive reference."""

import asyncio
from random import Random

import pytest

from kairos.core import InvalidRequest
from kairos.workflows import Functions, RunFunction, RunProcessor
from kairos.workflows.compile.batches import efficient_size
from kairos.workflows.start.flow_measured import MOST_ITEMS, AskedOfRun, curve, measured_batches


class Engine:
    """An engine that takes `fixed` for a batch and `item` for each round of `lanes` items."""

    def __init__(self, fixed, item, lanes, room=MOST_ITEMS):
        self.fixed, self.item, self.lanes, self.room = fixed, item, lanes, room
        self.at_s = 0.0

    def batch_s(self, items):
        return self.fixed + self.item * -(-items // self.lanes)

    async def ask(self, items):
        if items > self.room:
            raise InvalidRequest("too many")
        self.at_s += self.batch_s(items)

    def clock(self):
        return self.at_s


def drawn(seed):
    draw = Random(seed)
    item = 10 ** draw.uniform(-5, -1)
    return Engine(item * 10 ** draw.uniform(-1, 3), item, draw.choice([1, 1, 4, 16, 64]),
                  draw.choice([512, 512, 200, 30, 3]))  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_what_is_found_is_within_a_fifth_of_the_best_of_all_sizes(seed):
    engine = drawn(seed)
    found = asyncio.run(curve(engine.ask, clock=engine.clock))
    tried_s = engine.at_s
    best = max(n / engine.batch_s(n) for n in range(1, engine.room + 1))
    chosen = efficient_size(found)
    assert chosen <= engine.room
    if tried_s < 30:  # else the time was up
        assert chosen / engine.batch_s(chosen) >= 0.8 * best, (chosen, found)


def embed(number, texts):
    arguments = {"texts": texts, "batch": 16}
    return RunProcessor(number, 0, "n", 0, 1, "v", "s", 0, "embed", "minilm", arguments, None, 0)


def rerank(number, passages):
    arguments = {"query": "q", "passages": passages, "batch": 32, "top_k": 1}
    return RunProcessor(number, 0, "n", 0, 1, "b", "s", 0, "rerank", "bge", arguments, None, 0)


def ingest(number, texts, **named):
    arguments = {"texts": texts, "vectors": ["AAAAAA=="] * len(texts), **named}
    return RunProcessor(number, 0, "n", 0, 1, "i", "s", 0, "ingest", None, arguments, None, 0)


def function(number, name, batch):
    return RunFunction(number, 0, "n", 0, 1, "f", "s", 0, name, {"q": number}, None, batch)


class Processors:
    """Processors with a cost for each kind, which keep what they were asked."""

    def __init__(self, **costs):
        self.costs, self.at_s, self.asked = costs, 0.0, []

    async def run(self, command):
        self.asked.append(command)
        listed = command.arguments["passages" if command.kind == "rerank" else "texts"]
        fixed, item = self.costs[command.kind]
        self.at_s += fixed + item * len(listed)


async def test_each_processor_is_measured_with_what_the_run_asked_it():
    asked = AskedOfRun()
    asked.begin_call(embed(1, ["a", "b"]), 0)
    asked.begin_call(embed(2, "c"), 0)
    asked.begin_call(rerank(3, ["x", {"text": "y", "score": 1}]), 0)
    asked.begin_call(ingest(4, ["p", "q", "r"], collection="docs"), 0)
    asked.begin_call(ingest(5, ["own"]), 0)
    processors = Processors(embed=(0.001, 0.01), rerank=(1.0, 0.01), ingest=(0.1, 0.001))
    found = await measured_batches(asked, processors, Functions(), lambda: processors.at_s)
    assert found["embed:minilm"].efficient == 2
    assert found["rerank:bge"].efficient >= 256
    assert found["ingest"].efficient == 3, "of three passages, no others are put there"
    assert set(found) == {"embed:minilm", "rerank:bge", "ingest"}
    put = [each.arguments for each in processors.asked if each.kind == "ingest"]
    assert {text for each in put for text in each["texts"]} <= {"p", "q", "r"}
    texts = [t for e in processors.asked if e.kind == "embed" for t in e.arguments["texts"]]
    assert {text.rpartition(" ")[2] for text in texts} == {"a", "b", "c"}
    assert all(e.arguments["batch"] == len(e.arguments["texts"])
               for e in processors.asked if e.kind == "embed")  # fmt: skip


async def test_a_batched_function_is_measured_unless_it_has_effects():
    functions, at = Functions(), [0.0]

    def work(q):
        at[0] += 1.0 + 0.5 * len(q)
        return q

    functions.register(work, purity="pure", name="pure", batched=True)
    functions.register(work, purity="effect", name="effect", batched=True)
    functions.register(lambda q: q, purity="pure", name="alone")
    asked = AskedOfRun()
    for number in range(3):
        asked.begin_call(function(number, "pure", 16), 0)
    asked.begin_call(function(8, "effect", 16), 0)
    asked.begin_call(function(9, "alone", None), 0)
    found = await measured_batches(asked, None, functions, lambda: at[0])
    assert set(found) == {"call:pure"}
    assert found["call:pure"].latency_us[1] == pytest.approx(1.5e6)
