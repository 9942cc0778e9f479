"""Children of a program, while they come and go."""

import os
import subprocess
import sys
import threading

from tests.support.forked import children

ROUNDS, AT_ONCE = 20, 40


def test_children_that_end_while_they_are_listed_are_left_out():
    stays = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stop, missed, raised = threading.Event(), [], []

    def list_children():
        try:
            while not stop.is_set():
                if stays.pid not in children(os.getpid()):
                    missed.append(True)
        except OSError as error:
            raised.append(error)

    thread = threading.Thread(target=list_children)
    thread.start()
    try:
        # Linux lists children by the thread that started them: this must be the main one.
        for _ in range(ROUNDS):
            for each in [subprocess.Popen(["true"]) for _ in range(AT_ONCE)]:
                each.wait()
    finally:
        stop.set()
        thread.join()
        stays.communicate(b"\n")
    assert (missed, raised) == ([], [])
