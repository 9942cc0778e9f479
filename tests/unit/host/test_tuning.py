"""What a process sets for itself, seen in one of its own."""

import subprocess
import sys

SCRIPT = """
import asyncio, gc, weakref
from kairos.host import tuning

class Node:
    pass

def cycle():
    node = Node()
    node.me = node
    return weakref.ref(node)

async def main():
    tuning.collect_less_often()
    tuning.collect_less_often()
    settled = gc.get_freeze_count()
    old = cycle()
    kept = [[] for _ in range(3 * tuning._YOUNG)]
    young = old() is None  # it had not outlived a pass
    assert young and gc.get_freeze_count() >= settled + 2 * tuning._YOUNG
    strong = Node()
    strong.me = strong
    middle = weakref.ref(strong)
    kept += [[] for _ in range(2 * tuning._YOUNG)]  # strong outlives a pass
    del strong
    kept += [[] for _ in range(2 * tuning._YOUNG)]
    await asyncio.sleep(0)
    print("looked at again" if middle() is None else "left alone")
    kept += [[] for _ in range(tuning._YOUNG * tuning._PASSES + settled)]
    await asyncio.sleep(0)
    print("looked at again" if middle() is None else "left alone")
    print(len([each for each in gc.callbacks if isinstance(each, tuning._Settling)]))

asyncio.run(main())
"""


def test_what_has_outlived_a_pass_is_looked_at_again_once_there_is_twice_as_much():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["left alone", "looked at again", "1"]
