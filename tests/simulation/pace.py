"""How often a call is moved without need, and how long a stall goes unnoticed, where the truth is
known: `python -m tests.simulation.pace`, some minutes; `--minutes 2` is enough to see it work.

Callers make one call after the other at two models of vLLM, which are checked against the real one
(`tests/e2e/test_vllm_scheduler.py`); so many that prompts queue, and where memory is short, calls
are preempted. Nothing limits what is sent to an engine, as Kairos's placement would: the worst that
there is. Of each world there are three courses:

- all is well: whatever is suspected is a false alarm, one a call at most;
- some calls are lost: their engine computes them, and nothing of it arrives;
- an engine hangs, all at once, and says the same of itself for ever.
"""

import argparse
import statistics
from collections.abc import Iterator
from random import Random

import msgspec
from msgspec.structs import replace

from kairos.events import InstanceStatus
from kairos.faults.stalls import InFlight, Stalls
from kairos.model import SECOND, Instance
from kairos.sim.engine.engine import ModelledEngine
from kairos.sim.engine.engine_calls import EngineCall
from kairos.sim.engine.profiles import profile
from kairos.workload.prompt import PromptPiece

TICK_US = SECOND // 20  # of callers; what is seen of engines is exact
LOOK_US, STATUS_US = SECOND // 2, SECOND
LATE_US = SECOND // 5  # a status is known so much later
LOST = 0.02  # of calls, where some are
SEEDS = range(3)


class World(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    profile: str
    callers: int
    prompt: tuple[int, int]  # tokens, from and to
    long: float = 0.0  # share of prompts of the longest that the engine takes
    answer: tuple[int, int] = (5, 300)
    whole: float = 0.2  # share of answers that come whole
    pause_s: float = 0.0  # of a caller, between two calls
    burst_s: float = 0.0  # so often all callers call at once, with long prompts
    tells: bool = True  # the engine, how many calls run and wait inside it


WORLDS = (
    World(name="long prompts, GPU", profile="a40-llama3-8b", callers=120, prompt=(50, 7000)),
    World(
        name="short of memory", profile="a40-llama2-13b", callers=60, prompt=(50, 2000), long=0.1
    ),
    World(
        name="the same, tells nothing",
        profile="a40-llama2-13b",
        callers=60,
        prompt=(50, 2000),
        tells=False,
    ),
    World(
        name="bursts of 8k amid chat",
        profile="a40-llama3-8b",
        callers=40,
        prompt=(50, 500),
        pause_s=3,
        burst_s=60,
    ),
    World(name="8k now and then", profile="a40-llama3-8b", callers=24, prompt=(50, 500), long=0.01),
    World(name="on a CPU", profile="cpu-tiny", callers=80, prompt=(20, 3000), long=0.02),
    World(
        name="quick calls", profile="h200-llama3-8b", callers=16, prompt=(20, 500), answer=(2, 20)
    ),
    World(name="one caller", profile="h200-llama3-8b", callers=1, prompt=(20, 500), long=0.02),
)


class Call(msgspec.Struct):
    key: int
    place: int
    tokens: int
    since: int
    streams: bool
    is_lost: bool = False
    has_begun: bool = False
    generated: int = 0


class Tally(msgspec.Struct):
    calls: int = 0
    preempted: int = 0
    suspected: int = 0  # calls that were well
    noticed_us: list[int] = []  # from the beginning of the stall on
    unnoticed: int = 0


class Course:
    """Of one world and seed."""

    def __init__(
        self, world: World, seed: int, *, lost: float = 0.0, hangs_s: float | None = None
    ) -> None:
        self.world, self.dice, self.tally = world, Random(seed), Tally()
        self.lost, self.hangs_at = lost, None if hangs_s is None else int(hangs_s * SECOND)
        self.profile = profile(world.profile)
        self.engines = [ModelledEngine(self.profile) for _ in range(2)]
        self.stalls = Stalls()
        for number in range(2):
            self.stalls.joined(Instance(id=str(number), models=("m",), max_num_seqs=256))
        self.calls: dict[int, Call] = {}
        self.idle = [0] * world.callers  # since when a caller may call
        self.suspected: set[int] = set()
        self.statuses: dict[int, InstanceStatus] = {}

    def play(self, seconds: float) -> Tally:
        for at in range(TICK_US, int(seconds * SECOND), TICK_US):
            for number, engine in enumerate(self.engines):
                if not self.hangs(number, at):
                    self.advance(engine, at)
            self.ask(at)
            if at % STATUS_US == 0:
                self.hear(at)
            if at % STATUS_US == LATE_US:
                self.tell(at)
            if at % LOOK_US == 0:
                self.look(at)
        lost = [each for each in self.calls.values() if self.is_stalled(each, at)]
        self.tally.unnoticed = sum(at - each.since > 30 * SECOND for each in lost)
        self.tally.preempted = sum(each.stats.preemptions for each in self.engines)
        return self.tally

    def hangs(self, number: int, at: int) -> bool:
        return number == 0 and self.hangs_at is not None and at >= self.hangs_at

    def is_stalled(self, call: Call, at: int) -> bool:
        return not call.has_begun and (call.is_lost or self.hangs(call.place, at))

    def ask(self, at: int) -> None:
        world, dice = self.world, self.dice
        bursts = world.burst_s and at % int(world.burst_s * SECOND) < TICK_US
        asked = [since for since in self.idle if since <= at or bursts]
        self.idle = [since for since in self.idle if not (since <= at or bursts)]
        for _ in asked:
            self.tally.calls += 1
            key = self.tally.calls
            longest = min(self.profile.max_model_len, self.profile.kv_tokens) - 400
            is_long = bursts or dice.random() < world.long
            tokens = (
                longest
                if is_long
                else min(longest, int(dice.triangular(*world.prompt, world.prompt[0])))
            )
            answer = dice.randint(*world.answer)
            place = dice.randrange(2)
            if self.hangs(0, at) and self.suspected:
                place = 1  # its circuit is open
            streams = dice.random() >= world.whole
            self.calls[key] = Call(key, place, tokens, at, streams, dice.random() < self.lost)
            piece = PromptPiece(f"{key}", tokens)
            self.engines[place].add(
                EngineCall(id=str(key), prompt=(piece,), completion_tokens=answer), at
            ) if not self.hangs(place, at) else None

    def advance(self, engine: ModelledEngine, at: int) -> None:
        while (next_at := engine.next_at()) is not None and next_at <= at:
            for seen in engine.advance(next_at):
                call = self.calls.get(int(seen.call_id))
                if call is None or call.is_lost:
                    continue
                if seen.what == "first_token":
                    call.has_begun, call.since = call.streams, seen.at
                    continue
                self.stalls.answered(call.key, seen.at)
                self.end(call, seen.at)
        for name, generated in engine.generated(at).items():
            call = self.calls.get(int(name))
            if call is not None and call.streams and call.has_begun and generated > call.generated:
                call.generated, call.since = generated, at

    def end(self, call: Call, at: int) -> None:
        del self.calls[call.key]
        self.idle.append(at + int(self.dice.expovariate(1.0) * self.world.pause_s * SECOND))

    def hear(self, at: int) -> None:
        """What the engines say."""
        for number, engine in enumerate(self.engines):
            if not self.hangs(number, at):
                stats, blocks = engine.stats, self.profile.block_size / self.profile.kv_tokens
                self.statuses[number] = InstanceStatus(
                    str(number),
                    engine.used_blocks * blocks,
                    engine.running,
                    engine.waiting,
                    None,
                    stats.preemptions,
                )

    def tell(self, at: int) -> None:
        for status in self.statuses.values() if self.world.tells else ():
            sent = sum(each.place == int(status.instance_id) for each in self.calls.values())
            self.stalls.told(status, sent, at)

    def look(self, at: int) -> None:
        for key in self.stalls.look(self.in_flight(), at):
            call = self.calls[key]
            if self.is_stalled(call, at):
                since = call.since if call.is_lost else max(call.since, self.hangs_at)
                self.tally.noticed_us.append(at - since)
                self.suspected.add(key)
                self.end(call, at)
            elif key not in self.suspected:
                self.tally.suspected += 1
                self.suspected.add(key)

    def in_flight(self) -> Iterator[InFlight]:
        for each in self.calls.values():
            yield InFlight(
                each.key,
                str(each.place),
                "m",
                each.tokens,
                each.since,
                each.streams,
                each.has_begun,
                False,
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.pace")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--world", default="")
    options = parser.parse_args()
    seconds = options.minutes * 60
    print(
        f"{'world':26}{'calls':>8}{'preempt.':>9}{'false':>7}{'lost':>7}{'mean s':>8}{'max s':>7}{'never':>7}{'hung':>7}{'mean s':>8}{'max s':>7}{'never':>7}"
    )
    for world in WORLDS:
        if options.world not in world.name:
            continue
        well = [Course(world, seed).play(seconds) for seed in SEEDS]
        lost = [Course(world, seed, lost=LOST).play(seconds / 2) for seed in SEEDS]
        hung = [Course(world, seed, hangs_s=seconds / 4).play(seconds / 4 + 120) for seed in SEEDS]
        row = f"{world.name:26}{sum(t.calls for t in well):8}{sum(t.preempted for t in well):9}{sum(t.suspected for t in well):7}"
        for tallies in (lost, hung):
            noticed = [us / SECOND for t in tallies for us in t.noticed_us] or [0.0]
            row += f"{sum(len(t.noticed_us) for t in tallies):7}{statistics.fmean(noticed):8.1f}{max(noticed):7.1f}{sum(t.unnoticed for t in tallies):7}"
        row += f"   false in lost {sum(t.suspected for t in lost)} hung {sum(t.suspected for t in hung)}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
