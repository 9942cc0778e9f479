"""The kinds of instance worth having: devices, layouts and phases that no others beat."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kairos.errors import SetupError
from kairos.planner.engine_rates import EngineRates, derived, layouts
from kairos.planner.hardware import Accelerator, ModelShape
from kairos.planner.ownership import Terms, hourly_cost
from kairos.planner.pool import CallKind, InstanceKind
from kairos.planner.serving import NO_TARGETS, LatencyTargets, Phases, use

KEPT = 3  # layouts of a device that serve the same phases: cheapest first


class HardwareOffer(msgspec.Struct, frozen=True, kw_only=True):
    """What may be had, and on what terms."""

    devices: Sequence[Accelerator]
    model: ModelShape
    precision: str = "bf16"
    terms: Terms = Terms()
    most_devices: int = 8  # of an instance
    pairs: bool = True  # instances that serve one phase alone, too
    # Of one device with this model, where it was measured: the derived rates' place is theirs.
    measured: Mapping[str, EngineRates] = {}


class InstanceKinds(msgspec.Struct, frozen=True, kw_only=True):
    kinds: tuple[InstanceKind, ...]
    left_out: Mapping[str, str]  # devices that cannot be used -> why


def instance_kinds(
    offer: HardwareOffer, calls: Sequence[CallKind], targets: LatencyTargets = NO_TARGETS
) -> InstanceKinds:
    """Of each device and phase the layouts that no other beats in both cost and time.

    Raises:
        SetupError: no device can serve all of these calls; the message says why not.
    """
    kinds: list[InstanceKind] = []
    left_out: dict[str, str] = {}
    for device in offer.devices:
        try:
            found = [*_of_device(offer, device, calls, targets)]
        except SetupError as error:
            left_out[device.name] = str(error)
            continue
        kinds += found
        if not found:
            left_out[device.name] = "no layout serves any of the calls within the targets"
    if not kinds:
        why = "; ".join(left_out.values()) or "there are no devices"
        raise SetupError(f"nothing can serve {offer.model.name}: {why}")
    return InstanceKinds(kinds=tuple(kinds), left_out=left_out)


def _of_device(
    offer: HardwareOffer,
    device: Accelerator,
    calls: Sequence[CallKind],
    targets: LatencyTargets,
) -> Iterable[InstanceKind]:
    if device.kind == "cpu":
        raise SetupError(f"{device.name} is a processor: models run on accelerators here")
    hourly = hourly_cost(device, offer.terms)
    rates = _rates(offer, device)
    for phases in Phases if offer.pairs else (Phases.BOTH,):
        ranked: list[tuple[float, float, InstanceKind]] = []
        for (tensor, pipeline), each in rates.items():
            kind = InstanceKind(
                name=_name(device, tensor, pipeline, phases),
                device=device.name,
                phases=phases,
                rates=each,
                usd_per_hour=hourly.total * each.devices,
                kwh_per_hour=hourly.kwh * each.devices,
            )
            if (found := _cost_and_time(kind, calls, targets)) is not None:
                ranked.append((*found, kind))
        yield from _undominated(ranked)


def _name(device: Accelerator, tensor: int, pipeline: int, phases: Phases) -> str:
    layout = f"-tp{tensor}" * (tensor > 1) + f"-pp{pipeline}" * (pipeline > 1)
    return f"{device.name}{layout}" + (f" {phases}" if phases is not Phases.BOTH else "")


def _rates(offer: HardwareOffer, device: Accelerator) -> dict[tuple[int, int], EngineRates]:
    """By layout. Raises SetupError: the model fits in none."""
    found: dict[tuple[int, int], EngineRates] = {}
    problem: SetupError | None = None
    for layout in layouts(device, offer.most_devices):
        if layout == (1, 1) and device.name in offer.measured:
            found[layout] = offer.measured[device.name]
            continue
        try:
            found[layout] = derived(
                device,
                offer.model,
                precision=offer.precision,
                tensor=layout[0],
                pipeline=layout[1],
            )
        except SetupError as error:
            problem = error
    if not found and problem is not None:
        raise problem
    return found


def _cost_and_time(
    kind: InstanceKind, calls: Sequence[CallKind], targets: LatencyTargets
) -> tuple[float, float] | None:
    """Of all calls that it can serve, per second; fewer of them count as dearer. None: of none."""
    uses = [use(kind.rates, call.shape, kind.phases, targets) for call in calls]
    served = [(call, used) for call, used in zip(calls, uses, strict=True) if used is not None]
    if not served:
        return None
    share = sum(call.per_s for call, _ in served) / sum(call.per_s for call in calls)
    usd = sum(call.per_s * used.busy_s for call, used in served) * kind.usd_per_hour
    return usd / share**2, sum(call.on_path * used.latency_s for call, used in served) / share**2


def _undominated(ranked: list[tuple[float, float, InstanceKind]]) -> list[InstanceKind]:
    kept: list[tuple[float, InstanceKind]] = []
    for _, seconds, kind in sorted(ranked, key=lambda each: each[:2]):
        if not kept or seconds < kept[-1][0]:
            kept.append((seconds, kind))
    # The cheapest, the quickest, and what lies between.
    few = kept if len(kept) <= KEPT else [*kept[: KEPT - 1], kept[-1]]
    return [kind for _, kind in few]
