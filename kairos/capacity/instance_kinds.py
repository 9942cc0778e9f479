"""Kinds of instances on offer: devices, layouts and phases, for each model."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kairos.capacity.engine_rates import EngineRates, derived, expert_layouts, layouts
from kairos.capacity.hardware import Accelerator, Link, ModelShape
from kairos.capacity.ownership import Terms, check_terms, hourly_cost
from kairos.capacity.pool import CallKind, InstanceKind
from kairos.capacity.resources import engine_needs, price
from kairos.capacity.serving import Phases, use
from kairos.core import SetupError

LINK = Link()


class HardwareOffer(msgspec.Struct, frozen=True, kw_only=True):
    """Hardware on offer, and its terms."""

    devices: Sequence[Accelerator]
    model: ModelShape
    models: Mapping[str, ModelShape] = {}  # of agents that have another one, by agent
    precision: str = "bf16"
    terms: Terms = Terms()
    most_devices: int = 8  # of an instance
    pairs: bool = True  # instances that serve one phase alone, too
    # Of one device with a model, where it was measured, by DEVICE (the plan's model) or
    # DEVICE@MODEL: the derived rates' place is theirs.
    measured: Mapping[str, EngineRates] = {}
    resource_usd: Mapping[str, float] = {}  # an hour of a unit, by resource

    def model_of(self, agent: str) -> ModelShape:
        return self.models.get(agent, self.model)


class InstanceKinds(msgspec.Struct, frozen=True, kw_only=True):
    kinds: tuple[InstanceKind, ...]
    left_out: Mapping[str, str]  # devices that cannot be used -> why


def instance_kinds(
    offer: HardwareOffer, calls: Sequence[CallKind], link: Link = LINK
) -> InstanceKinds:
    """Return every layout that serves some of the calls. `link`: of pairs.

    Raises SetupError: no device can serve the calls of some model; the message says why.
    """
    check_terms(offer.terms)
    models = {offer.model_of(call.name).name: offer.model_of(call.name) for call in calls}
    kinds: list[InstanceKind] = []
    left_out: dict[str, str] = {}
    for device in offer.devices:
        found: list[InstanceKind] = []
        for model in models.values():
            theirs = [call for call in calls if call.model == model.name]
            try:
                found += _of_device(offer, device, model, theirs, link, several=len(models) > 1)
            except SetupError as error:
                left_out[device.name] = str(error)
        kinds += found
        if found:
            left_out.pop(device.name, None)
        else:
            left_out.setdefault(device.name, f"{device.name}: no layout serves any of the calls")
    for name in models:
        if not any(kind.model == name for kind in kinds):
            why = "; ".join(left_out.values()) or "there are no devices, or none that holds it"
            raise SetupError(f"nothing can serve {name}: {why}")
    return InstanceKinds(kinds=tuple(kinds), left_out=left_out)


def _of_device(
    offer: HardwareOffer,
    device: Accelerator,
    model: ModelShape,
    calls: Sequence[CallKind],
    link: Link,
    *,
    several: bool,
) -> Iterable[InstanceKind]:
    if device.kind == "cpu":
        raise SetupError(f"{device.name} is a processor: models run on accelerators here")
    hourly = hourly_cost(device, offer.terms)
    for layout, rates in _rates(offer, device, model).items():
        for phases in Phases if offer.pairs else (Phases.BOTH,):
            if any(use(rates, call.shape, phases) is not None for call in calls):
                needs = engine_needs(rates, model, offer.precision, phases, link)
                kw = hourly.kwh * rates.devices
                yield InstanceKind(
                    name=device.name
                    + layout
                    + f" {phases}" * (phases is not Phases.BOTH)
                    + f" {model.name}" * several,
                    device=device.name,
                    phases=phases,
                    rates=rates,
                    usd_per_hour=hourly.total * rates.devices + price(needs, offer.resource_usd),
                    kwh_per_hour=kw,
                    needs={device.name: rates.devices, "kw": kw, **needs},
                    paid=hourly.paid,
                    model=model.name,
                    kv_bytes_per_token=model.kv_bytes_per_token(),
                )


def _rates(offer: HardwareOffer, device: Accelerator, model: ModelShape) -> dict[str, EngineRates]:
    """Return rates by layout. Raises SetupError: the model fits nowhere."""
    found: dict[str, EngineRates] = {}
    problem: SetupError | None = None
    measured = offer.measured.get(f"{device.name}@{model.name}")
    if measured is None and model.name == offer.model.name:
        measured = offer.measured.get(device.name)
    ways = [
        (f"-tp{tensor}" * (tensor > 1) + f"-pp{stages}" * (stages > 1), (tensor, stages, 1))
        for tensor, stages in layouts(device, offer.most_devices)
    ]
    ways += [
        (f"-ep{expert}", (1, 1, expert))
        for expert in expert_layouts(device, model, offer.most_devices)
    ]
    for layout, (tensor, pipeline, expert) in ways:
        if not layout and measured is not None:
            found[layout] = measured
            continue
        try:
            found[layout] = derived(
                device,
                model,
                precision=offer.precision,
                tensor=tensor,
                pipeline=pipeline,
                expert=expert,
            )
        except SetupError as error:
            problem = error
    if not found and problem is not None:
        raise problem
    return found
