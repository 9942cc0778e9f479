"""Mixed-integer linear program, built piece by piece and solved by HiGHS.

HiGHS comes with scipy (`scipy.optimize.milp`), which Kairos already uses; highspy would be one more
compiled dependency for the same solver, whose further functions (warm starts, callbacks) are not
needed for programs of this size.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from kairos.core import SetupError

EXACT = 1e-9  # gap between the solution and its bound, relative
OPTIMAL, LIMIT, INFEASIBLE = 0, 1, 2  # what scipy calls `status`


class NotSolvedInTime(SetupError):
    """The solver found no solution within its time; there may be one."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            f"the solver found no plan within {limit_s:g} s: allow fewer kinds of hardware"
        )


class LinearProgram:
    """Program that minimises a sum of costs. `variable` returns the number of a variable."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._most: list[float] = []
        self._whole: list[int] = []
        self._rows: list[Mapping[int, float]] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def variable(self, cost: float = 0.0, most: float = math.inf, *, whole: bool = False) -> int:
        """Add a variable from 0 to `most`."""
        self._costs.append(cost)
        self._most.append(most)
        self._whole.append(int(whole))
        return len(self._costs) - 1

    def row(
        self, terms: Mapping[int, float], *, low: float = -math.inf, high: float = math.inf
    ) -> None:
        """Require that the sum of factors times variables is between `low` and `high`."""
        self._rows.append(terms)
        self._low.append(low)
        self._high.append(high)

    def solve(self, *, gap: float = EXACT, limit_s: float = 60.0) -> list[float] | None:
        """Return the variables' values at the optimum; None: no values satisfy all rows.

        Args:
            gap: relative distance from the optimum at which the solver may stop.
            limit_s: time for the solver.

        Raises:
            NotSolvedInTime: no solution was found within the limit.
        """
        found: Any = milp(
            self._costs,
            integrality=self._whole,
            bounds=Bounds(0, self._most),
            constraints=LinearConstraint(self._matrix(), self._low, self._high),
            options={"mip_rel_gap": gap, "time_limit": limit_s},
        )
        if found.status == INFEASIBLE:
            return None
        if found.x is None:
            raise NotSolvedInTime(limit_s)
        return [
            float(round(value)) if whole else float(value)
            for value, whole in zip(found.x, self._whole, strict=True)
        ]

    def _matrix(self) -> Any:
        at = [(row, each) for row, terms in enumerate(self._rows) for each in terms]
        values = [factor for terms in self._rows for factor in terms.values()]
        rows, columns = (list(each) for each in zip(*at, strict=True)) if at else ([], [])
        shape = (len(self._rows), len(self._costs))
        return coo_array((np.array(values), (rows, columns)), shape=shape).tocsr()
