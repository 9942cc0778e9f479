"""One Kairos of several processes on one host: workers that perform calls, one that decides."""
