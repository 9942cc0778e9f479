"""A pool that performs calls, and a process of it that dies, in the world of `pool_world`."""

from kairos.core import Topic
from tests.support.cluster.pool_world import World


class PlayedPool:
    """A pool of two processes that performs calls: what it writes is what is forged."""

    def __init__(self):
        self.world = World(seqs=(4, 4), max_waiting=100).__enter__()
        self.names, self.written = 0, set()
        self.deciding, self.other = self.world.process(), self.world.process()
        self.world.assign(self.deciding)
        self.world.flow()

    def perform(self, count=2):
        """Have calls answered, through each process and over the bus."""
        world = self.world
        clients = []
        for process in world.live:
            for _ in range(count):
                self.names += 1
                clients.append(world.call(process, f"c{self.names}", workflow_id=f"w{self.names}"))
        self.names += 1
        asked = f"b{self.names}"
        world.ask(asked)
        for _ in range(20):
            world.flow()
            for running in [*world.running]:
                if not running.is_answered:
                    running.end()
            if all(each.has_ended for each in clients) and world.replies(asked):
                break
        assert [each.status for each in clients] == [200] * len(clients)
        assert world.replies(asked) == [200]

    def write(self, message):
        at = self.world.append(message.topic, message.key, message.value, message.headers)
        if message.topic == Topic.EVENTS:
            self.written.add(at)

    def take_over(self):
        """Kill the process that decides; another reads back what was decided."""
        self.world.kill(self.deciding)
        self.deciding, self.other = self.other, self.world.process()
        self.world.assign(self.deciding)
        self.world.flow()

    def check_alive(self):
        assert self.world.problems == []
        for process in self.world.live:
            for task in (process.performing, process.deciding):
                if task.done():
                    task.result()
                assert not task.done()
        assert self.deciding.decides
