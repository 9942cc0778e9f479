"""How many examples a law is tried with.

In `make test` each law has at most 25 examples, the same ones in every run: what fails there fails
for everybody. With `KAIROS_EXAMPLES=random`, or `--hypothesis-profile random`, examples are drawn
freshly, and each law has twice as many as it names: `make acceptance PART=laws`.
"""

import os

from hypothesis import HealthCheck, settings

GATE = "ci"
RANDOM = "random"
CHOSEN_BY = "KAIROS_EXAMPLES"
# How long an example takes says how busy the machine is, and nothing of the code.
_ALWAYS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}


def load_profile():
    """Register both profiles, and load the one that the environment names."""
    plain = settings.get_profile("default")
    settings.register_profile(
        GATE, plain, max_examples=25, derandomize=True, database=None, **_ALWAYS
    )
    settings.register_profile(RANDOM, plain, max_examples=200, derandomize=False, **_ALWAYS)
    settings.load_profile(os.environ.get(CHOSEN_BY) or GATE)


def examples(most, *, gate=None, steps=None):
    """Return the settings of a law that is thorough with `most` examples.

    `gate`: how many it needs in `make test` to find what it is there to find, where the profile's
    25 are too few. `steps`: the longest run of a state machine.
    """
    profile = settings.default
    if settings.get_current_profile_name() == GATE:
        number = min(most, gate or profile.max_examples)
    else:
        number = most * profile.max_examples // 100
    return settings(max_examples=number, stateful_step_count=steps or profile.stateful_step_count)
