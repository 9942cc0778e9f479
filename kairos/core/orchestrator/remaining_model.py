"""Linear model of the logarithm of a workflow's remaining work. Not in the paper.

An agent's name alone says little if the agent is called many times. The model is a ridge regression
of ln(remaining_us) on `kairos.core.position.features`, with an effect per agent that is shrunk to
zero (the app's average) while the agent has few calls. The residuals are explained by the agent's
habits, one feature of `position.STEPS` after the other: the mean residual at each step, shrunk in
the same way. So an agent that is always called three times is known by its visits. An app is not
shrunk towards other apps: on recorded workflows that made the order worse.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from kairos.core.learnt import POOLED_AGENT, QUANTILES, ROUNDING, Floats, RemainingModel, parts
from kairos.core.orchestrator.window import Ring
from kairos.core.position import FEATURES, STEPS

MODEL_CALLS = 16_384  # recorded coding workflows, of 66 calls each, need as many; 700 kB an app
UNTRACKED = -1  # group of calls of untracked agents; it has no effect of its own

Ints = npt.NDArray[np.intp]

LOGARITHM, GROUP = FEATURES, FEATURES + 1  # columns, after the features
_RIDGE = 5.0  # calls; found by trial on recorded workflows
_COUNTED = 64  # values whose range is less than this many times their number are counted
_HABIT = 10.0  # number of calls at a step at which half of their mean residual is used


class Calls:
    """The most recent calls of an app, a tenant or everything, as a model's input."""

    def __init__(self) -> None:
        self._ring = Ring(MODEL_CALLS, FEATURES + 2)

    def add(self, numbers: tuple[float, ...], remaining_us: int, group: int) -> None:
        self._ring.append((*numbers, math.log(max(1, remaining_us)), group))

    def rows(self) -> Floats:
        """Return a copy, oldest first: [calls, FEATURES + 2]."""
        return self._ring.rows()

    def keep_newest(self, group: int, count: int) -> None:
        """Drop the calls of the group except the newest `count`."""
        of_group = self._ring.rows()[:, GROUP] == group
        newest = np.cumsum(of_group[::-1])[::-1] <= count  # of the group, from here to the end
        self._ring.keep(~of_group | newest)


def fit(
    tenant: str,
    app: str,
    rows: Floats,
    names: Mapping[int, str],
    prior: RemainingModel | None = None,
    still_open: Floats | None = None,
) -> RemainingModel:
    """Fit the model to these calls, shrunk towards the prior.

    Args:
        tenant: tenant of the app.
        app: app of the calls.
        rows: [calls, FEATURES + 2]; at least one row without a prior.
        names: name by group, for the groups that are the app's agents. Other groups get effects
            too, which keeps the weights free of them, but these are not returned.
        prior: model of the same app from before a restart. It counts as `QUANTILES` calls, or as
            its samples if fewer, spread evenly over the ranges it had seen.
        still_open: [calls, FEATURES + 2] of workflows that have not ended; they do not count as
            `samples`.
    """
    ended = len(rows)
    rows = rows.astype(np.float64)
    if still_open is not None:
        rows = np.concatenate((rows, still_open))
    worth = 0 if prior is None else min(max(1, prior.samples), QUANTILES)
    features = rows[:, :FEATURES]
    lowest, highest = features.min(axis=0, initial=np.inf), features.max(axis=0, initial=-np.inf)
    prior = _blank(lowest, highest) if prior is None else prior
    numbers, group = _numbered(rows[:, GROUP].astype(int))
    known = np.array([prior.agents.get(names.get(int(n), POOLED_AGENT), 0.0) for n in numbers])
    design = np.column_stack((np.ones(len(rows)), features))
    rest = rows[:, LOGARITHM] - design @ np.array((prior.intercept, *prior.weights)) - known[group]
    penalties = np.where(numbers == UNTRACKED, np.inf, max(_RIDGE, worth))
    change, effects = _ridge(design, rest, group, _shrinkage(prior, worth), penalties)
    found = dict(zip(numbers.tolist(), (known + effects).tolist(), strict=True))
    rest = rest - design @ change - effects[group]
    habits = {
        name: tuple(dict(habit) for habit in prior.habits.get(name, ({},) * len(STEPS)))
        for name in names.values()
    }
    groups = [names.get(int(number)) for number in numbers]
    rest = _habits(features, groups, group, rest, max(_HABIT, worth), habits)
    return RemainingModel(
        tenant=tenant,
        app=app,
        samples=ended + worth,
        intercept=prior.intercept + float(change[0]),
        weights=tuple((np.array(prior.weights) + change[1:]).tolist()),
        lowest=tuple(np.minimum(lowest, prior.lowest).tolist()),
        highest=tuple(np.maximum(highest, prior.highest).tolist()),
        agents={
            name: found.get(number, prior.agents.get(name, 0.0)) for number, name in names.items()
        },
        steps=STEPS,
        habits=habits,
        residuals=tuple(parts(np.concatenate((rest, prior.residuals))).tolist()),
    )


def _habits(
    features: Floats,
    names: Sequence[str | None],
    group: npt.NDArray[np.intp],
    rest: Floats,
    worth: float,
    found: dict[str, tuple[dict[int, float], ...]],
) -> Floats:
    """Add to `found`, by agent, the mean of `rest` at each step; return what remains unexplained.

    `names` has the agent of each group; None has no habits. `worth`: number of calls that the
    habits found before count as.
    """
    for number, (feature, per_unit) in enumerate(STEPS):
        at = np.floor(features[:, feature] * per_unit + ROUNDING).astype(int)
        lowest = int(at.min(initial=0))
        steps = int(at.max(initial=0)) - lowest + 1
        cells, cell = _numbered(group * steps + (at - lowest))
        habits = [
            (found.get(names[each // steps] or ""), lowest + each % steps)
            for each in cells.tolist()
        ]
        known = [habit[number].get(step, 0.0) if habit else 0.0 for habit, step in habits]
        rest = rest - np.array(known)[cell]
        sums = np.bincount(cell, weights=rest, minlength=len(cells))
        added = sums / (np.bincount(cell, minlength=len(cells)) + worth)
        added[[habit is None for habit, _ in habits]] = 0.0
        rest = rest - added[cell]
        for (habit, step), effect in zip(habits, (np.array(known) + added).tolist(), strict=True):
            if habit is not None:
                habit[number][step] = effect
    return rest


def _numbered(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values in ascending order, and for each value its index among them.

    Counts instead of sorting unless the values are widely spread.
    """
    lowest, highest = int(values.min(initial=0)), int(values.max(initial=0))
    from_lowest = values - lowest
    if highest - lowest >= _COUNTED * len(values):
        different, number = np.unique(values, return_inverse=True)
        return different, number
    found = np.flatnonzero(np.bincount(from_lowest))
    number = np.empty(int(found[-1]) + 1, np.intp)
    number[found] = np.arange(len(found))
    return found + lowest, number[from_lowest]


def _blank(lowest: Floats, highest: Floats) -> RemainingModel:
    return RemainingModel(
        tenant="",
        app="",
        samples=0,
        intercept=0.0,
        weights=(0.0,) * FEATURES,
        lowest=tuple(lowest.tolist()),
        highest=tuple(highest.tolist()),
        agents={},
        residuals=(),
    )


def _shrinkage(prior: RemainingModel, worth: int) -> Floats:
    """Return the weight of `worth` prior calls in the normal equations, plus the ridge.

    [columns, columns]; the first column is the intercept, which no ridge shrinks.
    """
    lowest, highest = np.array(prior.lowest), np.array(prior.highest)
    middle = np.concatenate(([1.0], (lowest + highest) / 2))
    variances = np.concatenate(([0.0], (highest - lowest) ** 2 / 12))
    ridge = np.concatenate(([0.0], np.full(FEATURES, _RIDGE)))
    seen = np.outer(middle, middle) + np.diag(variances)
    shrinkage: Floats = worth * seen + np.diag(ridge)
    return shrinkage


def _ridge(
    design: Floats,
    rest: Floats,
    group: npt.NDArray[np.intp],
    shrinkage: Floats,
    penalties: Floats,
) -> tuple[Floats, Floats]:
    """Fit `rest` by least squares on the design's columns and an effect per group, shrunk to 0.

    The effects (there may be hundreds) are eliminated first (Schur complement), so the system to
    solve is only as large as the design is wide.

    Returns:
        Coefficients [columns]; effects [groups].
    """
    columns = [np.bincount(group, weights=each, minlength=len(penalties)) for each in design.T]
    sums = np.column_stack(columns)  # of the design, by group
    rests = np.bincount(group, weights=rest, minlength=len(penalties))
    inverse = 1 / (np.bincount(group, minlength=len(penalties)) + penalties)
    left = design.T @ design - (sums.T * inverse) @ sums + shrinkage
    coefficients = np.linalg.solve(left, design.T @ rest - sums.T @ (inverse * rests))
    return coefficients, inverse * (rests - sums @ coefficients)
