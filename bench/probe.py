"""`python -m bench.probe PORT SECONDS`: how long /health takes, asked 50 times a second by a
process that does nothing else. Prints the times in microseconds, as JSON."""

import sys
import time
from http.client import HTTPConnection

import msgspec

from bench.upstream import HOST

INTERVAL_S = 0.02
LIMIT_S = 10.0


def times_us(port: int, seconds: float) -> list[float]:
    connection = HTTPConnection(HOST, port, timeout=LIMIT_S)
    found = []
    due = time.monotonic()
    ends_at = due + seconds
    while (due := max(due, time.monotonic())) < ends_at:
        time.sleep(max(0.0, due - time.monotonic()))
        began = time.perf_counter()
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        found.append((time.perf_counter() - began) * 1e6)
        assert response.status == 200, response.status
        due += INTERVAL_S
    return found


if __name__ == "__main__":
    print(msgspec.json.encode(times_us(int(sys.argv[1]), float(sys.argv[2]))).decode())
