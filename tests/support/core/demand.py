"""Demand for a pool, as an autoscaler is told of it."""

from kairos.core.pool_demand import DAY_S, OpenWork

__all__ = ["DAY_S", "OpenWork"]
