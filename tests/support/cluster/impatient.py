"""Run `kairos` so that it waits less, for what is dead and between what it saves: `python -m
tests.support.cluster.impatient`. For tests that would only wait longer: of `kairos demo` for its
seeds."""

import os
import sys

from kairos.cluster.kafka.subscription import Subscription
from kairos.cluster.orchestrate import follower
from tests.support.cli.command import main

SESSION_S = 3.0  # of Kafka's groups
SAVE_S = 1.0  # of `kairos orchestrate`
SEEDS = 3  # of `kairos demo`, in virtual time

if __name__ == "__main__":
    follower.SAVE_S = SAVE_S
    session_s = float(os.environ.get("KAIROS_TEST_SESSION_S", SESSION_S))
    Subscription.__init__.__kwdefaults__["session_s"] = session_s
    if sys.argv[1] == "demo":
        from kairos.cli.demos import gain

        gain.SEEDS = SEEDS
    main()
