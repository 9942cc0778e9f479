"""Halo's cost of a (partial) placement of operators on workers, section 3.2 of its paper:

    Ca_d = sum over operators v of worker d:  gamma_v/k_v^beta * e_v + sigma_v * lambda_v * p_v
    Ca   = max over workers of Ca_d
    Cr   = 1 / m^beta * sum over unassigned operators of e_v
    Cost = Ca + Cr

e_v is the time of inference, p_v that of preparing the context (loading the model among it), k_v on
how many workers the operator is replicated, m the number of workers.

The paper profiles gamma, sigma, lambda and beta offline and does not tell them. The defaults here
are assumed: they are a mild reuse of each kind, and replicas that are worth nine tenths of what
they cost.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec


class ReuseFactors(msgspec.Struct, frozen=True, kw_only=True):
    """Factors of Halo's cost model: 1 where nothing is reused.

    `beta` is an exponent: 1 where replicas are perfect.
    """

    gamma: float = 0.7  # of e_v, where the operator before on the worker left a context of its own
    sigma: float = 0.1  # of p_v, where the worker has the model already
    lambda_: float = 0.5  # of p_v, where what was retrieved before is used again
    beta: float = 0.9


class WorkerOperator(msgspec.Struct, frozen=True, kw_only=True):
    """An operator where it is placed. Times in µs; what it reuses of the one before it there."""

    inference_us: float
    preparation_us: float = 0.0
    replicas: int = 1
    reuses_context: bool = False
    reuses_model: bool = False
    reuses_retrieval: bool = False


def worker_us(operators: Iterable[WorkerOperator], factors: ReuseFactors) -> float:
    """Ca_d: of what one worker does, one after the other."""
    total = 0.0
    for each in operators:
        gamma = factors.gamma if each.reuses_context else 1.0
        sigma = factors.sigma if each.reuses_model else 1.0
        lambda_ = factors.lambda_ if each.reuses_retrieval else 1.0
        total += gamma / math.pow(each.replicas, factors.beta) * each.inference_us
        total += sigma * lambda_ * each.preparation_us
    return total


def placement_us(
    workers: Sequence[Sequence[WorkerOperator]],
    unassigned_us: Iterable[float],
    factors: ReuseFactors,
) -> float:
    """Ca + Cr. `unassigned_us`: e_v of operators that no worker has yet."""
    assigned = max((worker_us(each, factors) for each in workers), default=0.0)
    spread = math.pow(max(1, len(workers)), factors.beta)
    return assigned + sum(unassigned_us) / spread
