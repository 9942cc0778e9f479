"""Names and limits of the core that settings and `--help` speak of.

They stand here for who must not import the core itself, which brings numpy and takes a tenth of a
second. A test compares each with the core's own.
"""

POLICIES = (
    *("ayo", "fcfs", "fcfs-app", "gittins", "kairos", "las", "mean"),
    "wasserstein-mds",
)
PLACEMENTS = ("affinity", "kairos", "least-kv", "power-of-two", "round-robin", "time-slot")
MAX_WAITING = 10_000  # requests in the queue
MAX_WAIT_S = 600  # in the queue
IDLE_S = 600  # after a workflow's last call

NAME = r"\A[A-Za-z0-9_][A-Za-z0-9_-]{0,63}\Z"  # becomes part of a topic's name, so no dots
