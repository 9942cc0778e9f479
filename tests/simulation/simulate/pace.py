"""How often a call is moved without need, and how long a stall goes unnoticed, where the truth is
known: `python -m tests.simulation.simulate.pace`, ten minutes; with `--minutes 3`, one.

Callers make one call after the other at two models of vLLM, which are checked against the real one
(`tests/e2e/engines/test_vllm_scheduler.py`); so many that prompts queue, and where memory is short,
calls are preempted. Nothing limits what is sent to an engine, as Kairos's placement would: the
worst that there is. Of each world there are three courses:

- all is well: whatever is suspected is a false alarm, one a call at most;
- one call in fifty is lost: its engine computes it, and nothing of it arrives;
- an engine hangs, and says for ever what it said last. Once one of its calls was suspected, it gets
  no others. Only calls that have not begun are told of: the others are not moved.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from random import Random

import msgspec

from kairos.core import SECOND, Instance, InstanceStatus, SeenCall, Stalls
from kairos.engines import load_profile
from kairos.simulate.engine.engine import ModelledEngine
from kairos.simulate.engine.sequence import EngineCall
from kairos.simulate.workload.prompt import PromptPiece

TICK_US = SECOND // 20  # of callers; what engines do is exact
LOOK_US, STATUS_US = SECOND // 2, SECOND
LATE_US = SECOND // 5  # a status is known so much later
LOST = 0.02  # of calls, where some are
LONGEST_ANSWER = 400  # tokens; so much room is left behind the longest prompt
PENDING_US = 30 * SECOND  # a stall that old is told of, though it was not noticed before the end
SEEDS = range(3)


class World(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    profile: str
    callers: int
    prompt: tuple[int, int]  # tokens, from and to; short ones are likelier
    long: float = 0.0  # share of prompts that are as long as the engine takes
    answer: tuple[int, int] = (5, 300)
    whole: float = 0.2  # share of answers that come whole
    pause_s: float = 0.0  # of a caller, between two calls
    burst_s: float = 0.0  # so often all callers call at once, with long prompts
    tells: bool = True  # the engine, how many calls run and wait inside it


A40_8B, A40_13B, H200_8B, CPU = "a40-llama3-8b", "a40-llama2-13b", "h200-llama3-8b", "cpu-tiny"
SHORT = {"profile": A40_13B, "callers": 60, "prompt": (50, 2000)}
CHAT = {"profile": A40_8B, "prompt": (50, 500)}

WORLDS = (
    World(name="long prompts, saturated", profile=A40_8B, callers=120, prompt=(50, 7000)),
    World(name="short of memory", **SHORT, long=0.1),
    World(name="the same, it tells nothing", **SHORT, tells=False),
    World(name="bursts of 8k amid chat", **CHAT, callers=40, pause_s=3, burst_s=60),
    World(name="8k now and then", **CHAT, callers=24, long=0.01),
    World(name="on a CPU", profile=CPU, callers=80, prompt=(20, 3000), long=0.02),
    World(name="quick calls", profile=H200_8B, callers=16, prompt=(20, 500), answer=(2, 20)),
    World(name="one caller", profile=H200_8B, callers=1, prompt=(20, 500), long=0.02),
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
    preemptions: int = 0
    alarms: int = 0  # calls that were well
    noticed_us: list[int] = []  # after which a stall was
    pending: int = 0  # stalls that were not, of those that are old

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            *(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__)
        )


class Course:
    """Of one world and seed; `play` once."""

    def __init__(
        self, world: World, seed: int, *, lost: float = 0.0, hangs_s: float | None = None
    ) -> None:
        self.world, self.dice, self.tally = world, Random(seed), Tally()
        self.lost, self.hangs_at = lost, None if hangs_s is None else int(hangs_s * SECOND)
        self.profile = load_profile(world.profile)
        self.engines = [ModelledEngine(self.profile) for _ in range(2)]
        self.stalls = Stalls()
        for number in range(2):
            self.stalls.add_instance(Instance(id=str(number), models=("m",), max_num_seqs=256))
        self.calls: dict[int, Call] = {}
        self.idle = [0] * world.callers  # until when each caller that waits for nothing pauses
        self.suspected: set[int] = set()
        self.statuses: dict[int, InstanceStatus] = {}

    def play(self, seconds: float) -> Tally:
        until = int(seconds * SECOND)
        for at in range(TICK_US, until, TICK_US):
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
        self.tally.pending = sum(
            self.is_stalled(each, until) and until - each.since > PENDING_US
            for each in self.calls.values()
        )
        self.tally.preemptions = sum(each.stats.preemptions for each in self.engines)
        return self.tally

    def hangs(self, number: int, at: int) -> bool:
        return number == 0 and self.hangs_at is not None and at >= self.hangs_at

    def is_stalled(self, call: Call, at: int) -> bool:
        return not call.has_begun and (call.is_lost or self.hangs(call.place, at))

    def ask(self, at: int) -> None:
        """Those call whose pause is over, or all that wait for nothing."""
        burst_us = int(self.world.burst_s * SECOND)
        bursts = burst_us > 0 and at % burst_us < TICK_US
        paused = [until for until in self.idle if until > at and not bursts]
        for _ in range(len(self.idle) - len(paused)):
            self.begin(at, is_long=bursts or self.dice.random() < self.world.long)
        self.idle = paused

    def begin(self, at: int, *, is_long: bool) -> None:
        world, dice = self.world, self.dice
        self.tally.calls += 1
        key, place = self.tally.calls, dice.randrange(2)
        longest = min(self.profile.max_model_len, self.profile.kv_tokens) - LONGEST_ANSWER
        drawn = int(dice.triangular(*world.prompt, world.prompt[0]))
        tokens = longest if is_long else min(longest, drawn)
        answer, streams = dice.randint(*world.answer), dice.random() >= world.whole
        if self.hangs(0, at) and self.suspected:
            place = 1
        self.calls[key] = Call(key, place, tokens, at, streams, dice.random() < self.lost)
        if not self.hangs(place, at):
            prompt = (PromptPiece(str(key), tokens),)
            call = EngineCall(id=str(key), prompt=prompt, completion_tokens=answer)
            self.engines[place].add(call, at)

    def advance(self, engine: ModelledEngine, at: int) -> None:
        while (next_at := engine.next_at()) is not None and next_at <= at:
            for seen in engine.advance(next_at):
                call = self.calls.get(int(seen.call_id))
                if call is None or call.is_lost:
                    continue
                if seen.what == "first_token":
                    call.has_begun, call.since = call.streams, seen.at
                else:
                    self.stalls.end_watch(call.key, seen.at)
                    self.end(call, seen.at)
        for name, generated in engine.generated(at).items():
            call = self.calls.get(int(name))
            if call is not None and call.has_begun and generated > call.generated:
                call.generated, call.since = generated, at

    def end(self, call: Call, at: int) -> None:
        del self.calls[call.key]
        self.idle.append(at + int(self.dice.expovariate(1.0) * self.world.pause_s * SECOND))

    def hear(self, at: int) -> None:
        """What the engines say."""
        for number, engine in enumerate(self.engines):
            if self.world.tells and not self.hangs(number, at):
                self.statuses[number] = InstanceStatus(
                    str(number),
                    kv_used=engine.used_blocks * self.profile.block_size / self.profile.kv_tokens,
                    running=engine.running,
                    waiting=engine.waiting,
                    preemptions=engine.stats.preemptions,
                )

    def tell(self, at: int) -> None:
        for number, status in self.statuses.items():
            sent = sum(each.place == number for each in self.calls.values())
            self.stalls.record_status(status, sent, at)

    def look(self, at: int) -> None:
        for key in self.stalls.probe_calls(self.in_flight(), at):
            call = self.calls[key]
            if call.is_lost or self.hangs(call.place, at):  # begun or not
                since = max(call.since, 0 if call.is_lost else self.hangs_at or 0)
                self.tally.noticed_us.append(at - since)
                self.end(call, at)
            elif key not in self.suspected:
                self.tally.alarms += 1
            self.suspected.add(key)

    def in_flight(self) -> Iterator[SeenCall]:
        for each in self.calls.values():
            yield SeenCall(
                each.key,
                str(each.place),
                "m",
                each.tokens,
                each.since,
                each.streams,
                each.has_begun,
                is_paused=False,
            )


def courses(world: World, seeds: Sequence[int], seconds: float) -> tuple[Tally, Tally, Tally]:
    """Where all is well; where calls are lost; where an engine hangs."""
    half, quarter = seconds / 2, seconds / 4
    return (
        sum((Course(world, seed).play(seconds) for seed in seeds), Tally()),
        sum((Course(world, seed, lost=LOST).play(half) for seed in seeds), Tally()),
        sum((Course(world, seed, hangs_s=quarter).play(quarter + 120) for seed in seeds), Tally()),
    )


def _noticed(tally: Tally) -> str:
    seconds = [us / SECOND for us in tally.noticed_us] or [0.0]
    mean, most = statistics.fmean(seconds), max(seconds)
    return f"{len(tally.noticed_us):7}{mean:7.1f}{most:7.1f}{tally.pending:8}{tally.alarms:7}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.simulate.pace")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--world", default="", help="only those with this in their name")
    options = parser.parse_args()
    heads = "".join(
        f"{each:>7}{'mean s':>7}{'max s':>7}{'pending':>8}{'false':>7}" for each in ("lost", "hung")
    )
    print(f"{'world':27}{'calls':>8}{'preempted':>10}{'false':>7}{heads}")
    for world in WORLDS:
        if options.world in world.name:
            well, lost, hung = courses(world, SEEDS, options.minutes * 60)
            row = f"{world.name:27}{well.calls:8}{well.preemptions:10}{well.alarms:7}"
            print(row + _noticed(lost) + _noticed(hung), flush=True)


if __name__ == "__main__":
    main()
