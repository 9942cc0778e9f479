"""E9: static beginnings of prompts are computed before the first batch of rows, and used again
before the second, so that its calls find them."""

import msgspec

from experiments.flow_workloads import trading
from kairos import flow
from kairos.core import PLACEMENTS, POLICIES, SECOND, Finished
from kairos.engines import load_profile
from kairos.simulate import World
from kairos.simulate.flow_client import FlowClient
from kairos.simulate.flow_simulation import functions_runner
from kairos.workflows import FlowLimits, Functions

PAUSE_US = 600 * SECOND
LLAMA = load_profile("h200-llama3-8b")
WORKLOAD = trading()
# Without calls that prompts of single rows are computed ahead by.
WITH = flow.Passes(cached=False, prefill=False)
WITHOUT = flow.Passes(cached=False, prefill=False, touch=False)
PREFIXES = WORKLOAD.flow.compile(WITH).static_prefixes


class TwoBatches:
    """Of rows, each after a pause. `found`: by batch and operator, in order, whether a call had
    cached all whole blocks of what all its operator's prompts begin with."""

    def __init__(self, passes, *, batch, instances, kv_tokens):
        self._batch = batch
        self.found = [{}, {}]
        engine = msgspec.structs.replace(LLAMA, kv_tokens=kv_tokens)
        rows = [row for day in (0, 1) for row in WORKLOAD.rows(batch, seed=1, day=day)]
        limits = FlowLimits(
            capacity=instances * engine.max_num_seqs, kv_tokens=instances * kv_tokens
        )

        def client(clock, feed):
            self._client = FlowClient(
                WORKLOAD.flow.compile(passes),
                limits,
                iter(rows),
                functions_runner(Functions()),
                clock,
                feed,
                arrives_at=lambda row: PAUSE_US * (1 + row // batch),
            )
            return self._client

        World(
            (),
            {f"engine-{n}": engine for n in range(instances)},
            POLICIES["kairos"],
            PLACEMENTS["kairos"],
            observers=(self._look,),
            clients=client,
        ).run()
        self.figures = self._client.executor.figures

    def _look(self, record):
        event = record.event
        if isinstance(event, Finished) and not event.request_id.startswith("touch"):
            row, operator, _ = event.request_id.split("/")
            batch = int(row.partition(".")[2]) // self._batch
            for each in PREFIXES:
                if operator in each.operators:
                    whole = each.tokens // LLAMA.block_size * LLAMA.block_size
                    was = event.cached_tokens >= whole
                    self.found[batch].setdefault(each.operators[0], []).append(was)

    def share(self, batch):
        """Of the beginnings, those that the first call with them found."""
        first = [found[0] for found in self.found[batch].values()]
        return sum(first) / len(first)


def test_e9_95_percent_of_static_prefixes_are_found_in_the_second_batch():
    pool = {"batch": 4, "instances": 2, "kv_tokens": 49_152}
    ran, other = TwoBatches(WITH, **pool), TwoBatches(WITHOUT, **pool)
    assert len(PREFIXES) == 20
    assert ran.share(1) >= 0.95
    assert other.share(1) < 0.9  # what else was computed meanwhile took their place
    # Before the first batch all, before the second those that may be gone, and again while the
    # pauses last, as long as that pays.
    assert len(PREFIXES) < ran.figures.touched <= 9 * len(PREFIXES)
    assert ran.figures.written == other.figures.written == 8
    assert other.figures.touched == 0


def test_e9_static_prefixes_are_there_before_the_first_batch():
    ran, other = (
        TwoBatches(each, batch=3, instances=1, kv_tokens=131_072) for each in (WITH, WITHOUT)
    )
    assert ran.share(0) >= 0.95
    assert other.share(0) < 0.5


def test_e9_what_was_evicted_is_computed_again():
    """The last operator's turn comes when the batch has written more than there is room for."""
    ran = TwoBatches(WITH, batch=4, instances=1, kv_tokens=65_536)
    gone = {name: found for name, found in ran.found[1].items() if not found[0]}
    assert list(gone) == ["fund_manager"]
    assert any(gone["fund_manager"])  # by the calls after the first
    assert ran.figures.written == 8
    assert ran.figures.failed == 0
