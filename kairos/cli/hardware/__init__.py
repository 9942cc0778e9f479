"""Questions and output of `kairos plan-hardware`."""
