"""Run a module as a program that ends with its parent: `python -m kairos.engines.child MODULE ...`.

The parent holds the other end of this process's standard input and never writes to it. When the
parent ends, in whichever way, the kernel closes that end; this process reads the end of file and
exits with all its descendants.
"""

import os
import runpy
import signal
import sys
import threading


def main() -> None:
    # The parent starts us in a session of our own. By hand, in a shell's group, this would
    # take the shell's other jobs along.
    assert os.getpgrp() == os.getpid(), "not the leader of a process group"
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _leave_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
