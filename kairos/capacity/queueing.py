"""Waiting times of calls at several servers with a common queue."""

import math

MANY = 50  # servers
MANY_MORE = 2_000  # beyond, the recursion takes long, and its limit is as good


def erlang_c(servers: int, offered: float) -> float:
    """Return the probability that an arrival must wait, in M/M/c.

    Args:
        servers: their number, c.
        offered: arrivals a second times seconds of service, in servers. At `servers` or more every
            arrival waits: 1.
    """
    if offered >= servers:
        return 1.0
    if offered <= 0 or (servers > MANY and offered < servers / 4):
        return 0.0  # with over fifty servers that are mostly idle: under 1e-15
    if servers > MANY_MORE:
        return _halfin_whitt(servers, offered)
    blocked = 1.0  # Erlang B, by its recursion, which does not overflow
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


def _halfin_whitt(servers: int, offered: float) -> float:
    """Return Erlang C of many servers: the limit of Halfin and Whitt (1981)."""
    spare = (servers - offered) / math.sqrt(offered)
    density = math.exp(-(spare**2) / 2) / math.sqrt(2 * math.pi)
    below = (1 + math.erf(spare / math.sqrt(2))) / 2
    return density / (density + spare * below)


def mean_wait_s(
    servers: int, arrivals_per_s: float, service_s: float, *, service_cv2: float = 1.0
) -> float:
    """Return the mean wait in M/G/c, approximated as by Allen and Cunneen (1990); inf at full load.

    Exact for M/M/c and, with one server, for M/G/1.

    Args:
        servers: their number, c.
        arrivals_per_s: rate of arrivals.
        service_s: mean time of service.
        service_cv2: variance over squared mean of the times of service; 0: constant.
    """
    offered = arrivals_per_s * service_s
    if offered >= servers:
        return math.inf
    if offered == 0:
        return 0.0
    in_mmc = erlang_c(servers, offered) * service_s / (servers - offered)
    return in_mmc * (1 + service_cv2) / 2
