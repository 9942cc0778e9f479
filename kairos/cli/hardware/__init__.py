"""What `kairos plan-hardware` is asked, and shows."""
