"""`kairos`, which takes the executor of a run for dead sooner: `python -m tests.support.impatient`.

Executors tell of themselves every two seconds.
"""

from kairos.cli.main import main
from kairos.tools import run_bus

SILENCE_S = 7.0

if __name__ == "__main__":
    run_bus.SILENCE_S = SILENCE_S
    main()
