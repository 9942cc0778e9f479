"""CPU time of the loop for the largest records that a topic of a pool takes.

`python -m bench.bus_records` reads one of each kind, of a megabyte or as large as may be, as the
process does that takes a pool over, and decides by it. Nobody should wait for one record for more
than 100 ms. Left out: Kafka itself, and what the kernel and the client library do for a megabyte.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from time import process_time

import msgspec

from kairos.cluster import CALL, POOL_HEADER, TYPE_HEADER, ReceivedMessage, read_call, read_record
from kairos.cluster.pool.messages import EPOCH
from kairos.core import (
    PLACEMENTS,
    POLICIES,
    Balancer,
    Entitlements,
    EntitlementsChanged,
    Event,
    PlanDeclared,
    PlannedOperator,
    PlannedWork,
    Progressed,
    Quota,
    Record,
    Refuse,
    Started,
    TenantWeight,
    Tick,
    Topic,
)
from kairos.observe import UNREADABLE

MOST_MS = 100
_BYTES = 1 << 20
_TIMES = 3
_NOW = 10**15


def records() -> Iterator[tuple[str, bytes]]:
    """Yield what is on `kairos.events`, by name."""
    quotas = tuple(Quota(f"t{n}", calls_at_once=1) for n in range(14_000))
    weights = {f"t{n}": TenantWeight(2.0) for n in range(40_000)}
    operators = tuple(PlannedOperator(f"a{n}", tuple(range(n))) for n in range(256))
    facts: dict[str, Event] = {
        "quotas": EntitlementsChanged(Entitlements({}, {}, quotas)),
        "weights": EntitlementsChanged(Entitlements(weights, {})),
        "progress": Progressed({f"r{n}": 5 for n in range(80_000)}),
        "plan": PlanDeclared("t", "a", PlannedWork(operators)),
        "started": Started(tuple(f"r{n}" for n in range(100_000))),
    }
    for name, fact in facts.items():
        yield name, msgspec.json.encode(Record(1, fact))
    commands = tuple(Refuse("x" * 200, None) for _ in range(1_000))
    yield "commands", msgspec.json.encode(Record(1, Tick(), commands))
    yield "brackets", b"[" * _BYTES


def calls() -> Iterator[tuple[str, bytes]]:
    """Yield bodies of calls on `kairos.requests`, by name."""
    yield "messages", b'{"messages":[' + b"{}," * 330_000 + b"{}]}"
    yield "a text", b'{"messages":[{"role":"user","content":"%b"}]}' % (b"x " * 500_000)
    part = b'{"type":"text","text":"a"}'
    parts = b",".join([part] * 38_000)
    yield "parts", b'{"messages":[{"role":"user","content":[%b]}]}' % parts


def _take_record(value: bytes) -> None:
    headers = {POOL_HEADER: "pool", EPOCH: "0"}
    _, decision = read_record(ReceivedMessage(Topic.EVENTS, 0, 1, _NOW, "w", value, headers))
    Balancer(POLICIES["kairos"], PLACEMENTS["kairos"]).replay(decision.record)


def _take_call(value: bytes) -> None:
    headers = {TYPE_HEADER: CALL, "kairos-request-id": "r", "kairos-reply-to": "kairos.replies.x"}
    read_call(ReceivedMessage(Topic.REQUESTS, 0, 1, _NOW, "pool", value, headers), _NOW)


def took_ms(take: Callable[[bytes], None], value: bytes) -> float:
    """Return the CPU time of taking a value, the most of several."""
    most = 0.0
    for _ in range(_TIMES):
        began = process_time()
        with suppress(*UNREADABLE):
            take(value)
        most = max(most, process_time() - began)
    return 1_000 * most


def main() -> None:
    for take, values in ((_take_record, records()), (_take_call, calls())):
        for name, value in values:
            ms = took_ms(take, value[:_BYTES])
            mark = "" if ms <= MOST_MS else f"  over {MOST_MS} ms"
            print(f"{name:10} {len(value[:_BYTES]):>9,} bytes {ms:6.1f} ms of CPU{mark}")


if __name__ == "__main__":
    main()
