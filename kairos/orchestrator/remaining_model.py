"""How much of a workflow is left, from where it stands: a linear model of the logarithm; ours.

An agent's name alone says little where one agent is called many times. Ridge regression of
ln(remaining_us) on `kairos.position.features`, with an effect for each agent that is shrunk to none
(its app's average) while there are few calls of it. On recorded workflows it orders calls as well
as boosted trees do, takes a millisecond to fit and a microsecond to ask.
"""

import math
from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from kairos.learnt import POOLED, QUANTILES, RemainingModel
from kairos.orchestrator.window import Floats, Ring, parts
from kairos.position import FEATURES

MODEL_CALLS = 4_096
UNTRACKED = -1  # group of the calls that belong to none; they have no effect of their own

LOGARITHM, GROUP = FEATURES, FEATURES + 1  # columns, after the features
_RIDGE = 5.0  # calls; found by trial on recorded workflows
# How many calls a level is worth that comes from other apps: they run at another level.
_FOREIGN = 1.0


class Calls:
    """The most recent calls of an app, or of everything, as a model needs them."""

    def __init__(self) -> None:
        self._ring = Ring(MODEL_CALLS, FEATURES + 2)

    def add(self, numbers: tuple[float, ...], remaining_us: int, group: int) -> None:
        self._ring.append((*numbers, math.log(max(1, remaining_us)), group))

    def rows(self) -> Floats:
        """A copy, oldest first, [calls, FEATURES + 2]."""
        return self._ring.rows()

    def keep_newest(self, group: int, count: int) -> None:
        """Of the group's calls, drop all but so many."""
        of_group = self._ring.rows()[:, GROUP] == group
        newest = np.cumsum(of_group[::-1])[::-1] <= count  # of the group, from here to the end
        self._ring.keep(~of_group | newest)


def fit(
    tenant: str,
    app: str,
    rows: Floats,
    names: Mapping[int, str],
    prior: RemainingModel | None = None,
) -> RemainingModel:
    """The model of these calls, shrunk towards the prior.

    Args:
        rows: [calls, FEATURES + 2], at least one where there is no prior.
        names: of the groups that are the app's agents; the effects of other groups are found, so
            that the weights are free of them, and not told.
        prior: the same app's, from before a restart; or that of all apps, where there is none.
            Its level and effects are worth as many calls as it is made of, `QUANTILES` at most.
    """
    rows = rows.astype(np.float64)
    if prior is None:
        return _fit(tenant, app, rows, names, _blank(rows), 0.0)
    if (prior.tenant, prior.app) != (tenant, app):
        return _fit(tenant, app, rows, names, prior, _FOREIGN)
    worth = min(max(1, prior.samples), QUANTILES)
    model = _fit(tenant, app, rows, names, prior, worth)
    return msgspec.structs.replace(model, samples=len(rows) + worth)


def _blank(rows: Floats) -> RemainingModel:
    features = rows[:, :FEATURES]
    return RemainingModel(
        tenant=POOLED,
        app=POOLED,
        samples=0,
        intercept=0.0,
        weights=(0.0,) * FEATURES,
        lowest=tuple(features.min(axis=0).tolist()),
        highest=tuple(features.max(axis=0).tolist()),
        agents={},
        residuals=(),
    )


def _fit(
    tenant: str,
    app: str,
    rows: Floats,
    names: Mapping[int, str],
    prior: RemainingModel,
    strength: float,
) -> RemainingModel:
    features = rows[:, :FEATURES]
    numbers, group = np.unique(rows[:, GROUP].astype(int), return_inverse=True)
    known = np.array([prior.agents.get(names.get(int(n), POOLED), 0.0) for n in numbers])
    design = np.column_stack((np.ones(len(rows)), features))
    rest = rows[:, LOGARITHM] - design @ np.array((prior.intercept, *prior.weights)) - known[group]
    penalties = np.where(numbers == UNTRACKED, np.inf, max(_RIDGE, strength))
    change, effects = _ridge(design, rest, group, strength, penalties)
    found = dict(zip(numbers.tolist(), (known + effects).tolist(), strict=True))
    rest = rest - design @ change - effects[group]
    return RemainingModel(
        tenant=tenant,
        app=app,
        samples=len(rows),
        intercept=prior.intercept + float(change[0]),
        weights=tuple((np.array(prior.weights) + change[1:]).tolist()),
        lowest=tuple(np.vstack((features, prior.lowest)).min(axis=0).tolist()),
        highest=tuple(np.vstack((features, prior.highest)).max(axis=0).tolist()),
        agents={
            name: found.get(number, prior.agents.get(name, 0.0)) for number, name in names.items()
        },
        residuals=tuple(parts(np.concatenate((rest, prior.residuals))).tolist()),
    )


def _ridge(
    design: Floats, rest: Floats, group: npt.NDArray[np.intp], strength: float, penalties: Floats
) -> tuple[Floats, Floats]:
    """Least squares of `rest` on the design's columns and one effect per group, all shrunk to 0.

    The effects, of which there may be hundreds, are eliminated first (Schur complement), so what
    is solved is as small as the design is narrow.

    Returns: coefficients [columns], the first penalised by `strength`; effects [groups].
    """
    columns = design.shape[1]
    sums = np.zeros((len(penalties), columns))  # of the design, by group
    np.add.at(sums, group, design)
    rests = np.bincount(group, weights=rest, minlength=len(penalties))
    shrink = 1 / (np.bincount(group, minlength=len(penalties)) + penalties)
    left = design.T @ design - (sums.T * shrink) @ sums
    left += np.diag((strength, *[_RIDGE] * (columns - 1)))
    coefficients = np.linalg.solve(left, design.T @ rest - sums.T @ (shrink * rests))
    return coefficients, shrink * (rests - sums @ coefficients)
