"""What calls that kill their engine do to other callers, in virtual time:
`python -m tests.simulation.killers`, some seconds.

Callers make one call after the other. A villain makes one each half second that kills the engine
which has it, and all that runs there; the engine is restarted. Calls that had bytes of an answer
fail with it, the others bounce. The same world without the villain is what each is compared to; in
`a restart` an engine dies by itself every half minute.
"""

import heapq
from collections.abc import Callable
from random import Random
from statistics import mean

import msgspec

from kairos.core import (
    SECOND,
    Arrived,
    Bounced,
    Dispatch,
    Event,
    Failed,
    Finished,
    FirstToken,
    InstanceJoined,
    InstanceLeft,
    InstanceStatus,
    KairosError,
    Tick,
)
from tests.support.simulate import build

SEQS = 8
LASTS_S = 300
FIRST_TOKEN_US, KILLS_US, NOTICED_US = SECOND // 10, SECOND // 20, SECOND // 50
CALL_S = 2.0  # mean
VILLAIN_EACH_US = SECOND // 2


class World(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    instances: int = 4
    callers: int = 12
    restart_s: int = 20
    body: Callable[[int], int] | None = None  # of the villain's nth call
    dies_each_s: int | None = None  # an engine, by itself
    suspicion_s: int = 10


def _same(_: int) -> int:
    return 1


def _another(number: int) -> int:
    return 1000 + number


WORLDS = (
    World(name="a restart", dies_each_s=30),
    World(name="one body", body=_same),
    World(name="another body each time", body=_another),
    World(name="one body, two engines", body=_same, instances=2, callers=6),
    World(
        name="the same, suspects wait until it is back",
        body=_same,
        instances=2,
        callers=6,
        suspicion_s=90,
    ),
    World(
        name="another each time, two engines", body=_another, instances=2, callers=6, suspicion_s=90
    ),
    World(
        name="another each time, two, 60 s to restart",
        body=_another,
        instances=2,
        callers=6,
        restart_s=60,
        suspicion_s=90,
    ),
    World(name="another each time, sixteen engines", body=_another, instances=16, callers=64),
)


class Tally(msgspec.Struct):
    latencies_s: list[float] = []
    failed: int = 0  # others' calls, of which bytes had come
    refused: int = 0  # others' calls
    deaths: int = 0
    most_down: int = 0  # engines, at once
    villains: dict[str, int] = {}  # what became of the villain's calls


class Pool:
    def __init__(self, world: World, seed: int) -> None:
        self.world, self.dice, self.tally = world, Random(seed), Tally()
        self.names = [f"i{n}" for n in range(world.instances)]
        self.balancer = build.balancer(
            *(build.instance(name, seqs=SEQS) for name in self.names),
            placement="least-kv",
            suspicion_us=world.suspicion_s * SECOND,
        )
        self.at, self.number, self.events = 0, 0, []
        self.running: dict[str, tuple[str, int]] = {}  # instance, since, by call
        self.began: dict[str, int] = {}
        self.bodies: dict[str, int] = {}  # of calls that kill
        self.down: set[str] = set()

    def later(self, us: int, what: Callable[..., None], *told) -> None:
        self.number += 1
        heapq.heappush(self.events, (self.at + us, self.number, what, told))

    def play(self) -> Tally:
        for caller in range(self.world.callers):
            self.later(self.dice.randrange(SECOND), self.call, f"caller {caller}")
        if self.world.body is not None:
            self.later(10 * SECOND, self.villain, 0)
        if self.world.dies_each_s:
            self.later(self.world.dies_each_s * SECOND, self.die_by_itself)
        self.later(SECOND, self.status)
        while self.events[0][0] < LASTS_S * SECOND:
            self.wake()
            self.at, _, what, told = heapq.heappop(self.events)
            what(*told)
        return self.tally

    def wake(self) -> None:
        """Up to the next event."""
        while (at := self.balancer.tick_at) is not None and at <= self.events[0][0]:
            self.at = max(self.at, at)
            self.tell(Tick())

    def tell(self, event: Event) -> None:
        for command in self.balancer.handle(event, self.at):
            name = command.request_id
            if isinstance(command, Dispatch):
                self.begin(name, command.instance_id)
            else:
                self.end(name, command.reason)

    def call(self, caller: str) -> None:
        self.number += 1
        self.arrive(f"{caller} {self.number}", "good", None)

    def villain(self, number: int) -> None:
        self.later(VILLAIN_EACH_US, self.villain, number + 1)
        self.arrive(f"villain {number}", "bad", self.world.body(number))

    def arrive(self, name: str, agent: str, body: int | None) -> None:
        self.began[name] = self.at
        if body is not None:
            self.bodies[name] = body
        request = build.request(name, at=self.at, app="app", agent=agent)
        try:
            self.tell(Arrived(request, body))
        except KairosError as error:
            self.end(name, error.code)

    def begin(self, name: str, instance_id: str) -> None:
        if instance_id in self.down:  # nothing listens there
            self.later(0, self.tell, Bounced(name, "refused", about_itself=True))
            return
        self.running[name] = instance_id, self.at
        key = instance_id, self.at
        if name in self.bodies:
            self.later(KILLS_US, self.die, instance_id, name)
            return
        self.later(FIRST_TOKEN_US, self.if_runs, name, key, FirstToken(name))
        lasts_us = FIRST_TOKEN_US + int(self.dice.expovariate(1 / CALL_S) * SECOND)
        self.later(lasts_us, self.if_runs, name, key, Finished(name))

    def if_runs(self, name: str, key: tuple[str, int], event: Event) -> None:
        if self.running.get(name) != key:
            return
        if type(event) is Finished:
            del self.running[name]
        self.tell(event)
        if type(event) is Finished:
            self.end(name, "finished")

    def die(self, instance_id: str, name: str | None = None) -> None:
        if instance_id in self.down or (name is not None and name not in self.running):
            return
        self.down.add(instance_id)
        self.tally.deaths += 1
        self.tally.most_down = max(self.tally.most_down, len(self.down))
        here = [each for each, (where, _) in self.running.items() if where == instance_id]
        for each in here:
            _, since = self.running.pop(each)
            body = self.bodies.get(each, hash(each) >> 11)
            if each not in self.bodies and self.at - since >= FIRST_TOKEN_US:
                self.tell(Failed(each, "broke", by_instance=True, body=body, dropped=True))
                self.end(each, "failed")
            else:
                self.tell(Bounced(each, "broke", body, dropped=True))
        self.later(NOTICED_US, self.tell, InstanceLeft(instance_id))
        self.later(self.world.restart_s * SECOND, self.restart, instance_id)

    def die_by_itself(self) -> None:
        self.later(self.world.dies_each_s * SECOND, self.die_by_itself)
        self.die(self.dice.choice(self.names))

    def restart(self, instance_id: str) -> None:
        self.down.discard(instance_id)
        self.tell(InstanceJoined(build.instance(instance_id, seqs=SEQS)))

    def status(self) -> None:
        self.later(SECOND, self.status)
        for name in self.names:
            if name not in self.down:
                self.tell(InstanceStatus(name))

    def end(self, name: str, how: str) -> None:
        began_at = self.began.pop(name)
        if name.startswith("villain"):
            self.tally.villains[how] = self.tally.villains.get(how, 0) + 1
            return
        if how == "finished":
            self.tally.latencies_s.append((self.at - began_at) / SECOND)
        elif how == "failed":
            self.tally.failed += 1
        else:
            self.tally.refused += 1
        self.later(1 if how == "finished" else SECOND, self.call, name.rsplit(" ", 1)[0])


def main() -> None:
    heads = ("mean", "of without", "calls", "failed", "refused", "deaths", "down")
    print(f"{'world':42}" + "".join(f"{each:>11}" for each in heads) + "  the villain's calls")
    for world in WORLDS:
        tallies = [Pool(world, seed).play() for seed in range(5)]
        calm = msgspec.structs.replace(world, body=None, dies_each_s=None)
        without = mean(mean(Pool(calm, seed).play().latencies_s) for seed in range(5))
        with_it = mean(mean(each.latencies_s) for each in tallies)
        became: dict[str, int] = {}
        for each in tallies:
            for how, count in each.villains.items():
                became[how] = became.get(how, 0) + count
        row = (
            *(f"{with_it:.2f} s", f"{with_it / without:.2f}"),
            *(sum(len(each.latencies_s) for each in tallies), sum(e.failed for e in tallies)),
            *(sum(e.refused for e in tallies), sum(e.deaths for e in tallies)),
            max(each.most_down for each in tallies),
        )
        print(f"{world.name:42}" + "".join(f"{each:>11}" for each in row) + f"  {became}")


if __name__ == "__main__":
    main()
