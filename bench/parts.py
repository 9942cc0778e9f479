"""The parts of a call's way, and which code belongs to which.

`MODULES` is what to adapt when modules move. The innermost frame that some entry names decides; an
entry names a package with all that is in it. Modules that many parts use, such as
`kairos.core.model`, are in no entry, so their time counts for whoever calls them. Where no entry
names any frame of a stack, the time is `other`; it must stay small.
"""

from types import FrameType

SERVER = "server: reading, parsing, writing"
BODY = "body, access, prompt, identity that is told"
INFERENCE = "inference"
ARRIVAL = "brain: an arrival"
CHOICE = "brain: the choice of an instance"
END = "brain: an end"
FACTS = "brain: other facts"
OBSERVERS = "observers: log, telemetry, workflows"
UPSTREAM = "upstream client"
FORWARDING = "the call, forwarding"
BESIDE = "beside calls: monitor, progress, operators"
LOOP = "event loop, kernel"
OTHER = "other"
THREADS = "other threads: learning"
PARTS = (
    *(SERVER, BODY, INFERENCE, ARRIVAL, CHOICE, END, FACTS, OBSERVERS, UPSTREAM, FORWARDING),
    *(BESIDE, LOOP, OTHER, THREADS),
)

_BRAIN = "brain"  # which part of it says the fact that is handled
# By the beginning of a module's name; the longest that fits counts.
MODULES = {
    "uvicorn": SERVER,
    "starlette": SERVER,
    "fastapi": SERVER,
    "kairos.gateway.server.http": SERVER,
    "kairos.gateway.server.connection": SERVER,
    "kairos.gateway.server.exchange": SERVER,
    "kairos.gateway.api.gateway": BODY,
    "kairos.request.bodies": BODY,
    "kairos.request.body": BODY,
    "kairos.gateway.auth.access": BODY,
    "kairos.request.declared": BODY,
    "kairos.request.tokens": BODY,
    "kairos.request.tokenizer": BODY,
    "kairos.request.identity": BODY,
    "kairos.request.identity.inference": INFERENCE,
    "kairos.request.identity.conversation": INFERENCE,
    "kairos.request.identity.answered_calls": INFERENCE,
    "kairos.request.identity.parts": INFERENCE,
    "kairos.request.identity.passages": INFERENCE,
    "kairos.request.identity.fingerprint": INFERENCE,
    "kairos.core.runtime": _BRAIN,
    "kairos.core.balancer": _BRAIN,
    "kairos.core.dispatching": _BRAIN,
    "kairos.core.admission": _BRAIN,
    "kairos.core.scheduler": _BRAIN,
    "kairos.core.dispatcher": _BRAIN,
    "kairos.core.learner": OBSERVERS,
    "kairos.core.orchestrator": OBSERVERS,
    "kairos.core.metrics": OBSERVERS,
    "kairos.observe.fact_log": OBSERVERS,
    "kairos.observe.telemetry": OBSERVERS,
    "kairos.cluster.local.learning": OBSERVERS,
    "kairos.observe.store": OBSERVERS,
    "prometheus_client": OBSERVERS,
    "aiohttp": UPSTREAM,
    "kairos.proxy.engine": UPSTREAM,
    "kairos.proxy.engine_client": UPSTREAM,
    "kairos.proxy.connections": UPSTREAM,
    "kairos.proxy.engine_answer": UPSTREAM,
    "kairos.proxy.engine_link": UPSTREAM,
    "kairos.proxy.asked": UPSTREAM,
    "kairos.proxy.call": FORWARDING,
    "kairos.proxy.response_forwarder": FORWARDING,
    "kairos.request.client_response": FORWARDING,
    "kairos.proxy.sse": FORWARDING,
    "kairos.engines.monitor": BESIDE,
    "kairos.engines.engine_probe": BESIDE,
    "kairos.engines.kinds": BESIDE,
    "kairos.engines.fleet": BESIDE,
    "kairos.cluster.local.local_control": BESIDE,
    "kairos.service": BESIDE,
    "kairos.gateway.api.front": BESIDE,
}
# Of the brain: what looks for a place for a call, whatever fact it was that made room.
CHOOSES = (
    *(
        "kairos.core.dispatcher.placements",
        "kairos.core.dispatcher.available",
        "kairos.core.dispatcher.slots",
    ),
    "kairos.core.dispatcher.survival_packing",
)
_FACTS = {
    "Arrived": ARRIVAL,
    "Finished": END,
    "Failed": END,
    "Cancelled": END,
    "Bounced": END,
}
_HANDLER = ("kairos.core.balancer", "handle")
# From here outward there is nothing but what runs the loop.
_RUNNERS = {"asyncio.runners", "bench.sampled", "kairos.cli.running", "__main__"}
_OF_LOOP = ("asyncio", "contextlib", "signal", "bench.sampled")


def part_of(frame: FrameType | None) -> tuple[str, str | None]:
    """Which part this stack is in; and the innermost place, where that is `OTHER`."""
    inner = frame
    is_loop = True
    if frame is not None and _is_entered_now(frame):
        return LOOP, None
    while frame is not None and _name(frame) not in _RUNNERS:
        part = part_of_module(_name(frame))
        if part is not None:
            return (_part_of_brain(frame) if part == _BRAIN else part), None
        is_loop = is_loop and _name(frame).startswith(_OF_LOOP)
        frame = frame.f_back
    return (LOOP, None) if is_loop else (OTHER, _place(inner))


def part_of_module(module: str) -> str | None:
    """What the longest entry says that names it."""
    while module:
        if module in MODULES:
            return MODULES[module]
        module = module.rpartition(".")[0]
    return None


def _part_of_brain(frame: FrameType | None) -> str:
    chooses = False
    while frame is not None:
        module = _name(frame)
        chooses = chooses or module.startswith(CHOOSES)
        if (module, frame.f_code.co_name) == _HANDLER:
            fact = type(frame.f_locals.get("event")).__name__
            return CHOICE if chooses else _FACTS.get(fact, FACTS)
        frame = frame.f_back
    return FACTS


def _is_entered_now(frame: FrameType) -> bool:
    """Whether the loop calls this function just now. A signal that comes while the loop is in the
    kernel, or in C, is handled at the first instruction of the next function."""
    outer = frame.f_back
    entered = frame.f_lasti <= _first_instruction(frame)
    return entered and outer is not None and _name(outer) in _RUNNERS


def _first_instruction(frame: FrameType) -> int:
    """Of its work: before it, cells are made and free variables copied, two bytes each."""
    code = frame.f_code
    return 2 * (len(code.co_cellvars) + bool(code.co_freevars) + 1)


def _name(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _place(frame: FrameType | None) -> str:
    return "" if frame is None else f"{_name(frame)}.{frame.f_code.co_qualname}"
