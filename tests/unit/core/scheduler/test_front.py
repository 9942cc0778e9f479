"""The front of a heap beside a sorted list, whatever comes, goes and changes."""

from random import Random

from kairos.core.scheduler.heap import LazyHeap
from kairos.core.scheduler.queue import Front

MOST = 4
STEPS = ("push", "push", "drop", "change", "ask", "ask", "put back", "move")


class Story:
    def __init__(self):
        self.keys: dict[int, int] = {}  # by name, of those that are alive
        self.heap = LazyHeap(self.renew)
        self.front = Front(self.heap, self.renew, MOST)

    def renew(self, entry):
        key = self.keys.get(entry[1])
        return None if key is None else entry if key == entry[0] else (key, entry[1])

    def step(self, draw, number):
        step = draw.choice(STEPS)
        if step == "push":
            self.keys[number] = draw.randrange(10)
            self.heap.push((self.keys[number], number), len(self.keys))
        elif step == "drop" and self.keys:
            del self.keys[draw.choice(sorted(self.keys))]
        elif step == "change" and self.keys:  # for the worse; else it would be pushed anew
            self.keys[draw.choice(sorted(self.keys))] += draw.randrange(10)
        elif step == "put back":
            self.front.put_back()
        elif step == "move":
            self.front.put_back()
            self.heap.start_moving()
        else:
            count = draw.randrange(1, MOST + 1)
            first = sorted((key, name) for name, key in self.keys.items())[:count]
            assert self.front.entries(count) == first
            assert len(self.front._entries) <= MOST


def test_it_is_the_first_of_all_that_are_alive():
    for seed in range(300):
        story, draw = Story(), Random(seed)
        for number in range(draw.randrange(80)):
            story.step(draw, number)
