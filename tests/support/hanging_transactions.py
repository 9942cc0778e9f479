"""What Kafka itself leaves open when a node that stands alone is killed in the middle of a commit.

While it starts again it may find that a partition which is to get the mark of the commit has no
leader yet, take it for deleted, and note that the transaction is complete (Kafka 4.3.1; its log has
the line below). Then readers of that partition, or a group's offsets, wait for ever. Operators end
such a transaction by hand (docs/operations/troubleshoot.md); so do the tests that kill a broker.
"""

import os
import subprocess
import time
from pathlib import Path

HAPPENED = "these partitions are likely deleted already and hence can be skipped"
_SHARED = Path(__file__).parents[3] / "shared" / "kafka"
_LIMIT_S = 60
_ENDS_S = 3  # within which one ends that is about to
_TRIES = 5  # coordinators may be loading still


def end_hanging_transactions(servers):
    """Abort each that a partition holds open and its coordinator does not know. One that was just
    ending when it was looked for is none: it is gone at the second look."""
    seen = _hanging(servers)
    if seen:
        time.sleep(_ENDS_S)
        seen &= _hanging(servers)
    for topic, partition, offset in sorted(seen):
        where = ("--topic", topic, "--partition", partition, "--start-offset", offset)
        _tool(servers, "abort", *where)
    print(f"Kafka left transactions open that it had completed: {sorted(seen)}")
    return seen


def _hanging(servers):
    """By topic, partition and the offset at which it begins."""
    found = _tool(servers, "find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0")
    fields = [line.split() for line in found.splitlines()[1:]]
    return {(topic, partition, offset) for topic, partition, _, _, _, offset, *_ in fields}


def _tool(servers, *arguments):
    libs = Path(os.environ.get("KAFKA_HOME") or _SHARED) / "libs" / "*"
    tool = ("java", "-cp", str(libs), "org.apache.kafka.tools.TransactionsCommand")
    for _ in range(_TRIES):
        done = subprocess.run(
            [*tool, "--bootstrap-server", servers, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
        )
        if done.returncode == 0:
            return done.stdout
        time.sleep(1)
    raise AssertionError(f"{arguments[0]}: {done.stderr[-2000:]}")
