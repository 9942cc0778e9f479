"""Attacks on a gateway, measured: `python -m tests.acceptance.attacks`, or `... media bodies`.

Each attack meets a fresh `kairos serve` before an engine that answers at once, three times. A line
for each says the worst of these: how late a timer of 10 ms in its event loop was, and how late
without the time in which the kernel ran other processes; by how much the peak of its memory grew;
and how long the requests of another tenant took. No single request, row
or stream may delay the loop by more than 100 ms, or have memory grow by more than eight times its
own bytes and 32 MB; what does is marked.
"""

import argparse
import gc
import sys

from tests.attacks.gateway import engine, gateway
from tests.attacks.listed import KINDS

RUNS = 3


def measured(attack, engine_port, runs):
    """The worst of each figure, and whether all are bounded."""
    harms = []
    for _ in range(runs):
        with gateway(engine_port) as attacked:
            if attack.prepare is not None:
                attack.prepare(attacked)
            with attacked.measured(attack.own_bytes) as said:
                said.append(attack.run(attacked))
            harms.append(said[-1])
        gc.collect()
    worst = [max(getattr(each, name) for each in harms) for name in _FIGURES]
    return worst, all(each.is_bounded for each in harms), harms[-1]


_FIGURES = "late_s", "own_s", "grew_bytes", "waited_s", "took_s"


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.attacks", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"any of {' '.join(KINDS)} (all)")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of each attack ({RUNS})")
    parser.add_argument("--only", default="", help="attacks with this in their name")
    told = parser.parse_args()
    failed = 0
    print(f"{'attack':44}     MB  late ms  own ms  grew MB others s  took s")
    with engine() as engine_port:
        for kind in told.kinds or KINDS:
            for attack in KINDS[kind]():
                if told.only not in attack.what:
                    continue
                worst, is_bounded, last = measured(attack, engine_port, told.runs)
                failed += not is_bounded
                late_s, own_s, grew_bytes, waited_s, took_s = worst
                print(
                    f"{attack.what:44} {attack.own_bytes / 1e6:6.1f} {1e3 * late_s:8.0f} "
                    f"{1e3 * own_s:7.0f} "
                    f"{grew_bytes / 1e6:8.0f} {waited_s:8.2f} {took_s:7.2f} "
                    f"{'' if is_bounded else '! '}{last.status[:60]}",
                    flush=True,
                )
    print(f"{failed} of them beyond the bounds")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
