"""How often the verdict on a call is wrong, in worlds of which the truth is known:
`python -m tests.simulation.faults`, half a minute.

Calls come to four instances, eight in flight; each has a body of its own. In each world instances
fail sound calls at some rate, and some calls are poisonous: they fail wherever they go.
"""

from random import Random

import msgspec

from kairos.core import SECOND, Arrived, Bounced, Dispatch, Finished, InstanceStatus, Refuse, Tick
from tests.support.simulate import build

IN_FLIGHT = 8
CALL_US = SECOND // 10


class World(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    rates: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)  # at which each instance fails sound calls
    poisonous: float = 0.0  # share of the calls
    villain: bool = False  # one agent makes these, and no others


WORLDS = (
    World(name="all is well", rates=(0.0,) * 4),
    World(name="a network that fails 1 % of calls", rates=(0.01,) * 4),
    World(name="two instances that fail 15 %", rates=(0.15,) * 2),
    World(name="an instance that fails all", rates=(1.0, 0.0, 0.0, 0.0)),
    World(name="two of four that fail all", rates=(1.0, 1.0, 0.0, 0.0)),
    World(name="an instance that fails half", rates=(0.5, 0.0, 0.0, 0.0)),
    World(name="1 % of calls are poisonous", poisonous=0.01),
    World(name="1 % poisonous, a network that fails 1 %", rates=(0.01,) * 4, poisonous=0.01),
    World(name="1 % poisonous, an instance that fails all", rates=(1.0, 0, 0, 0), poisonous=0.01),
    World(name="5 % poisonous, two instances", rates=(0.0,) * 2, poisonous=0.05),
    World(name="the same, all of one agent", rates=(0.0,) * 2, poisonous=0.05, villain=True),
    World(name="30 %, all of one agent", rates=(0.0,) * 2, poisonous=0.3, villain=True),
)


class Tally(msgspec.Struct):
    sound: int = 0
    poisonous: int = 0
    condemned: int = 0  # sound calls that were refused as poisonous
    given_up: int = 0  # sound calls that were refused for want of another instance
    missed: int = 0  # poisonous calls that were not refused as such
    tries: int = 0  # of poisonous calls
    opened: int = 0  # circuits of instances that fail no sound call


class Callers:
    """Of one world. `play` returns what became of the calls."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.dice, self.tally = world, Random(seed), Tally()
        self.names = [str(number) for number in range(len(world.rates))]
        instances = [build.instance(name, seqs=IN_FLIGHT) for name in self.names]
        self.balancer = build.balancer(*instances, placement="least-kv")
        self.running: dict[str, str] = {}  # where, by id of the call
        self.sound: dict[str, bool] = {}

    def play(self, calls: int) -> Tally:
        begun = 0
        while begun < calls or self.sound:
            if begun < calls and len(self.sound) < IN_FLIGHT:
                self.begin(f"call {begun}", begun)
                begun += 1
            elif self.running:
                self.end(self.dice.choice(sorted(self.running)))
            else:  # all instances are left alone
                self.take(self.balancer.handle(Tick(), self.balancer.at + SECOND))
        return self.tally

    def begin(self, name: str, number: int) -> None:
        is_sound = self.dice.random() >= self.world.poisonous
        self.sound[name] = is_sound
        self.tally.sound += is_sound
        self.tally.poisonous += not is_sound
        at = self.balancer.at + CALL_US // IN_FLIGHT
        agent = "villain" if self.world.villain and not is_sound else "agent"
        request = build.request(name, at=at, app="app", agent=agent)
        self.take(self.balancer.handle(Arrived(request), at))

    def end(self, name: str) -> None:
        instance_id, at = self.running.pop(name), self.balancer.at + 1
        rate = self.world.rates[int(instance_id)] if self.sound[name] else 1.0
        if self.dice.random() >= rate:
            del self.sound[name]
            self.take(self.balancer.handle(Finished(name), at))
            return
        self.tally.tries += not self.sound[name]
        before = self.open()
        self.take(self.balancer.handle(Bounced(name, "broke", hash(name) >> 11), at))
        self.take(self.balancer.handle(InstanceStatus(instance_id), at))  # it lives
        well = [each for each in self.open() - before if not self.world.rates[int(each)]]
        self.tally.opened += len(well)

    def open(self) -> set[str]:
        circuits = self.balancer.faults.circuits
        return {each for each in self.names if circuits.state(each, self.balancer.at) == "open"}

    def take(self, commands: list[Dispatch | Refuse]) -> None:
        for command in commands:
            name = command.request_id
            if isinstance(command, Dispatch):
                self.running[name] = command.instance_id
                continue
            is_sound = self.sound.pop(name)
            if is_sound:
                self.tally.condemned += command.reason == "breaks_engines"
                self.tally.given_up += command.reason != "breaks_engines"
            else:
                self.tally.missed += command.reason != "breaks_engines"


def main() -> None:
    heads = ("world", "sound", "condemned", "given up", "poisonous", "missed", "tries", "opened")
    print(f"{heads[0]:45}" + "".join(f"{each:>11}" for each in heads[1:]))
    for world in WORLDS:
        tallies = [Callers(world, seed).play(5000) for seed in range(5)]
        sums = {
            name: sum(getattr(each, name) for each in tallies) for name in Tally.__struct_fields__
        }
        tries = sums["tries"] / sums["poisonous"] if sums["poisonous"] else 0.0
        row = (
            *(sums["sound"], sums["condemned"], sums["given_up"], sums["poisonous"]),
            *(sums["missed"], f"{tries:.2f}", sums["opened"]),
        )
        print(f"{world.name:45}" + "".join(f"{each:>11}" for each in row))


if __name__ == "__main__":
    main()
