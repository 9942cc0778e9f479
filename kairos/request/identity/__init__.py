"""Who makes a call, and what led to it: a ladder of what says so, highest first (`ladder.py`)."""
