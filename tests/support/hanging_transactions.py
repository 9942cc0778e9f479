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
_TRIES = 5  # coordinators may be loading still


def end_hanging_transactions(servers):
    """Abort each that a partition holds open and its coordinator does not know."""
    found = _tool(servers, "find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0")
    ended = []
    for line in found.splitlines()[1:]:
        topic, partition, _, _, _, offset, *_ = line.split()
        where = ("--topic", topic, "--partition", partition, "--start-offset", offset)
        _tool(servers, "abort", *where)
        ended.append((topic, int(partition)))
    print(f"Kafka left transactions open that it had completed: {ended}")
    return ended


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
