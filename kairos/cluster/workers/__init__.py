"""Several processes on one host: workers that perform calls, and a decider."""
