"""Fit of an engine profile's coefficients to observed steps and their durations."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

from kairos.core import StepCost

BAD_RESIDUAL = 0.2
_WEIGHTS_TRIED = (0.25, 0.5, 0.75, 0.95)  # shares of the shortest step
_PASSES = 3  # until what errors are relative to stands still
_LEAST_SCALE = 0.2
_MIXED = "mixed"
_WORTH = 0.9  # of the squared error without weights is the most that they may leave, to be kept
_EXACT = 1e-12  # a squared error in which there is nothing left to explain
_ORDER = (  # of the coefficients; the time of a call outside of steps goes before
    "fixed_us",
    "weights_us",
    "prefill_token_us",
    "prefill_seq_us",
    "decode_seq_us",
    "kv_token_us",
    "attention_us",
)
_WEIGHTS = 1 + _ORDER.index("weights_us")
_Array = NDArray[np.float64]


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of an engine; for the letters see `kairos.core.engine_profile.StepCost`."""

    group: str  # observations that were made alike
    took_us: float
    calls: int = 0  # 1 where `took_us` is of one call, from its sending to its first token
    steps: float
    prefill_steps: float = 0  # of these steps, those in which prompts were computed
    prefill_tokens: float = 0  # P, summed over the steps, as are the others
    prefill_seqs: float = 0  # S
    decode_seqs: float = 0  # D
    kv_tokens: float = 0  # K
    attention_pairs: float = 0  # A


class Residuals(msgspec.Struct, frozen=True, kw_only=True):
    """Deviations of the model from the measurements, as shares of the measured values."""

    observations: int
    median: float
    worst: float
    bias: float  # median of model / measured - 1


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    step: StepCost
    call_us: float
    r2: float  # of the times, in µs
    overall: Residuals
    groups: dict[str, Residuals]

    @property
    def bad(self) -> bool:
        return self.overall.median > BAD_RESIDUAL

    def table(self) -> str:
        """Return a table of the model's deviations from the measurements."""
        header = f"{'observations':<24}{'':>4}{'median off':>12}{'worst':>9}{'model/seen':>12}"
        rows = [
            f"{group:<24}{of.observations:>4}{of.median:>12.1%}{of.worst:>9.1%}{1 + of.bias:>12.3f}"
            for group, of in [*self.groups.items(), ("all", self.overall)]
        ]
        return "\n".join([header, *rows, f"R2 of the times: {self.r2:.4f}"])


def fit_step_cost(observations: Sequence[Steps]) -> Fit:
    """Return the non-negative coefficients with the least sum of squared relative errors.

    Every group of observations has the same weight, however many it has; but `mixed` weighs as much
    as all others together: it is engines' normal use, where costs are least linear.

    Errors are relative to the model's prediction, not to the measurement: otherwise runs that noise
    made slow would count for less than undisturbed ones, and the mean, which decides whether an
    engine keeps up, would be too low.

    Without `weights_us` the problem is linear. With them it is not, and is solved from several
    starting points; they are used if they explain the observations notably better. If they are not,
    because computing takes longer in none of the observed steps, or in all, `fixed_us` covers both.
    """
    assert observations
    seen = _Seen(observations)
    for _ in range(_PASSES):
        seen.scale = np.maximum(seen.predicted(seen.linear()), seen.took * _LEAST_SCALE)
    best, least = (linear := seen.linear()), seen.error(linear) * _WORTH - _EXACT
    for share in _WEIGHTS_TRIED:
        start = seen.beginning(share)
        found = least_squares(seen.residuals, start, bounds=(0, np.inf), x_scale="jac").x
        if (error := seen.error(found)) < least:
            best, least = found, error
    call_us, *costs = best.tolist()
    return _described(observations, StepCost(**dict(zip(_ORDER, costs, strict=True))), call_us)


def predicted_us(observation: Steps, cost: StepCost, call_us: float = 0.0) -> float:
    """Return the model's prediction for steps, which are taken as equal within a kind."""
    coefficients = np.array([call_us, *(getattr(cost, name) for name in _ORDER)])
    return float(_Seen([observation]).predicted(coefficients)[0])


class _Seen:
    """Observations as columns."""

    def __init__(self, observations: Sequence[Steps]) -> None:
        def column(name: str) -> _Array:
            return np.array([float(getattr(each, name)) for each in observations])

        self.took, self.steps = column("took_us"), column("steps")
        self._calls, self._prefill_seqs = column("calls"), column("prefill_seqs")
        self._kv_tokens, self._pairs = column("kv_tokens"), column("attention_pairs")
        self._prompt_steps = column("prefill_steps")
        self._prompts = column("prefill_tokens") / np.maximum(self._prompt_steps, 1e-9)  # a step
        self._decodes = column("decode_seqs") / self.steps  # a step
        self.scale = self.took  # what errors are relative to
        sizes = Counter(each.group for each in observations)
        weights = {group: max(1, len(sizes) - 1) if group == _MIXED else 1 for group in sizes}
        self._shares = np.array(
            [(weights[each.group] / sizes[each.group]) ** 0.5 for each in observations]
        )

    def predicted(self, coefficients: _Array) -> _Array:
        call, fixed, weights, prompt, seq, decode, kv, pair = coefficients
        decodes = decode * self._decodes
        times: _Array = (
            call * self._calls
            + fixed * self.steps
            + (self.steps - self._prompt_steps) * np.maximum(weights, decodes)
            + self._prompt_steps * np.maximum(weights, prompt * self._prompts + decodes)
            + seq * self._prefill_seqs
            + kv * self._kv_tokens
            + pair * self._pairs
        )
        return times

    def residuals(self, coefficients: _Array) -> _Array:
        shares: _Array = (self.predicted(coefficients) - self.took) / self.scale * self._shares
        return shares

    def error(self, coefficients: _Array) -> float:
        return float(np.square(self.residuals(coefficients)).sum())

    def beginning(self, share: float) -> _Array:
        """Return a starting point: this share of the shortest step is due to the weights.

        Tokens cost the maximum possible, so that some hide the weights.
        """
        shortest = (self.took / self.steps).min()
        prompts, decodes = self._prompts * self._prompt_steps, self._decodes * self.steps
        prompt, decode = ((self.took / np.maximum(n, 1e-9)).min() for n in (prompts, decodes))
        return np.array([0, (1 - share) * shortest, share * shortest, prompt, 0, decode, 0, 0])

    def linear(self) -> _Array:
        """The best coefficients without weights."""
        one_each = np.eye(1 + len(_ORDER))
        one_each[_WEIGHTS, _WEIGHTS] = 0.0
        columns = [self.predicted(one) * self._shares / self.scale for one in one_each]
        matrix = np.stack(columns, axis=1)
        scale = np.linalg.norm(matrix, axis=0)  # of very different sizes: tokens, pairs of them
        scale[scale == 0] = 1.0
        best: _Array = nnls(matrix / scale, self._shares * self.took / self.scale)[0] / scale
        return best


def _described(observations: Sequence[Steps], cost: StepCost, call_us: float) -> Fit:
    errors = [predicted_us(each, cost, call_us) / each.took_us - 1 for each in observations]
    of_group: dict[str, list[float]] = defaultdict(list)
    for each, error in zip(observations, errors, strict=True):
        of_group[each.group].append(error)
    took = np.array([each.took_us for each in observations])
    left, there = np.square(np.array(errors) * took).sum(), np.square(took - took.mean()).sum()
    return Fit(
        step=cost,
        call_us=call_us,
        r2=float(1 - left / there) if there else 0.0,
        overall=_residuals(errors),
        groups={name: _residuals(of) for name, of in of_group.items()},
    )


def _residuals(errors: Sequence[float]) -> Residuals:
    sizes = [abs(error) for error in errors]
    return Residuals(
        observations=len(errors), median=median(sizes), worst=max(sizes), bias=median(errors)
    )
