"""How long calls wait where several servers share a queue."""

import math

MANY = 50  # servers
MANY_MORE = 2_000  # beyond, the recursion takes long, and its limit is as good


def erlang_c(servers: int, offered: float) -> float:
    """The probability that an arrival must wait, in M/M/c.

    Args:
        offered: arrivals a second times seconds of service, in servers. At `servers` or more all
            wait: 1.
    """
    if offered >= servers:
        return 1.0
    if offered <= 0 or (servers > MANY and offered < servers / 4):
        return 0.0  # of more than fifty servers that are mostly idle: under 1e-15
    if servers > MANY_MORE:
        return _halfin_whitt(servers, offered)
    blocked = 1.0  # Erlang B, by its recursion, which does not overflow
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


def _halfin_whitt(servers: int, offered: float) -> float:
    """Erlang C of many servers: the limit of Halfin and Whitt (1981)."""
    spare = (servers - offered) / math.sqrt(offered)
    density = math.exp(-(spare**2) / 2) / math.sqrt(2 * math.pi)
    below = (1 + math.erf(spare / math.sqrt(2))) / 2
    return density / (density + spare * below)


def mean_wait_s(
    servers: int,
    arrivals_per_s: float,
    service_s: float,
    *,
    arrival_cv2: float = 1.0,
    service_cv2: float = 1.0,
) -> float:
    """In G/G/c, by the approximation of Allen and Cunneen (1990); inf at a load of 1 or more.

    Exact for M/M/c and, with one server, for M/G/1.

    Args:
        arrival_cv2: variance over squared mean of the times between arrivals; 1: Poisson.
        service_cv2: the same of service; 0: always as long.
    """
    offered = arrivals_per_s * service_s
    if offered >= servers:
        return math.inf
    if offered == 0:
        return 0.0
    in_mmc = erlang_c(servers, offered) * service_s / (servers - offered)
    return in_mmc * (arrival_cv2 + service_cv2) / 2


def in_system(arrivals_per_s: float, stay_s: float) -> float:
    """How many are there in the mean: Little's law."""
    return arrivals_per_s * stay_s
