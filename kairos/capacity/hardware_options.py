"""Options of `kairos plan-hardware`, the question that they are to the planner, and its answer."""

import math
import re
from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path

import msgspec

from kairos.capacity.engine_rates import EngineRates, measured_rates
from kairos.capacity.hardware import CAPACITY_UNITS, HardwareCatalogue, Link
from kairos.capacity.hardware_plan import HardwarePlan, HardwareQuestion, Objective, plan_hardware
from kairos.capacity.instance_kinds import HardwareOffer
from kairos.capacity.lowering import ObservedCall
from kairos.capacity.migration import Migration, plan_migration
from kairos.capacity.ownership import Terms
from kairos.capacity.pool_simulation import SimulatedTimes, simulate_plan
from kairos.capacity.reasons import Reasons, give_reasons
from kairos.capacity.resources import Worker
from kairos.capacity.serving import LatencyTargets
from kairos.core import InvalidFile, SetupError
from kairos.engines import load_profile
from kairos.host import read_toml
from kairos.simulate import FileCall, Workflow, load_workflows, workflows_of_flow

MAX_AGENTS = 64  # with a place of their own; the calls of those with least tokens are pooled
OTHERS = "(others)"
BLOCK = 16  # tokens of a block in the KV cache: vLLM's default
WINDOW_S = 600.0  # the busiest of the file is planned for
DEFAULT_MODEL = "llama-3-8b"
TARGETS = ("p95", "ttft", "tpot")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_OWN = ("accelerators.toml", "models.toml")


class HardwareOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command line, by their names there but for `--from`, which is `today`."""

    export: Path | None = None  # or a flow, over a table, with its functions
    flow: Path | None = None
    inputs: Path | None = None
    functions: Path | None = None
    models: Sequence[str]  # NAME, or AGENT=NAME or SERVED=NAME
    targets: Sequence[str] = ()  # p95=30s, ttft=250ms, tpot=20ms
    precision: str = "bf16"
    hardware: str | None = None  # names; None: all with a price
    catalogue: Path | None = None
    profiles: Sequence[str] = ()  # DEVICE=PROFILE
    rate: float | None = None  # workflows a second
    budget: float | None = None  # USD an hour
    late_usd: float | None = None  # for a workflow's second
    max_devices: int = 8
    pairs: bool = True
    link_gbit: float = 400.0
    max_kinds: int = 3  # of instances in one pool
    split: bool = True  # an agent's calls
    terms: Terms = Terms()
    objective: Objective = "cost"
    have: Sequence[str] = ()  # NAME=AMOUNT, of devices and resources
    worker: str | None = None  # cores=1,memory=1: of a tool
    today: str | None = None  # "4 x a100, 2 x h100-tp2": the pool that there is
    what_if: Sequence[str] = ()  # load=2, price:h100=0.5: to plan again with
    simulate: bool = False  # the pool that is chosen


def load_catalogue(own: Path | None = None) -> HardwareCatalogue:
    """Return the catalogue of Kairos, with entries that a file adds or replaces.

    Raises InvalidFile: the file is not a catalogue; the message says which field is wrong.
    """
    found = HardwareCatalogue()
    for name in _OWN:
        with as_file(files("kairos.capacity") / "catalogue" / name) as path:
            found = found.with_others(read_catalogue(path))
    return found if own is None else found.with_others(read_catalogue(own))


def read_catalogue(path: Path) -> HardwareCatalogue:
    """Read a catalogue.

    Raises InvalidFile: it is not a catalogue; the message says which field is wrong.
    """
    found = read_toml(path, HardwareCatalogue)
    if problem := found.problem():
        raise InvalidFile(path, problem)
    return found


def planned_workflows(options: HardwareOptions) -> list[Workflow]:
    """Return what the hardware is for; each call's `model` is the name in the catalogue.

    Raises SetupError, InvalidFile: what is wrong with an option or a file, and what to do.
    """
    if (options.export is None) == (options.flow is None):
        raise SetupError("say what is to be served: --export FILE, or FLOW --inputs TABLE")
    if options.flow is not None and options.rate is None and options.objective != "tokens":
        raise SetupError("a table does not tell how often rows come: give --rate, rows a second")
    if options.export is not None:
        if options.inputs is not None or options.functions is not None:
            raise SetupError("--inputs and --functions are of a FLOW: leave them out with --export")
        found = load_workflows(options.export)
    else:
        assert options.flow is not None
        found = workflows_of_flow(options.flow, options.inputs, options.functions)
    return with_models(found, options.models, load_catalogue(options.catalogue))


def with_models(
    workflows: Sequence[Workflow], texts: Sequence[str], known: HardwareCatalogue
) -> list[Workflow]:
    """Return the workflows with the catalogue's name of each call's model.

    `texts` have `NAME` for all calls, `WHO=NAME` for calls of an agent (`AGENT` or `APP/AGENT`) or
    of a served model. Where nothing else fits, a call has the model that it asked for, if the
    catalogue has that (or the end of Hugging Face's name); otherwise the plan's. Raises SetupError:
    the catalogue has no such model, or no call is WHO's.
    """
    names = dict(_model(text) for text in texts)
    if len(names) < len(texts):
        raise SetupError("--model says two things of the same calls: give each one once")
    for name in names.values():
        known.model_named(name)
    plain = names.pop("", DEFAULT_MODEL)
    calls = {(call.app, call.agent, call.model) for each in workflows for call in each.calls}
    who = {
        each for app, agent, model in calls for each in (f"{app}/{agent}", agent, model or agent)
    }
    if unknown := set(names) - who:
        raise SetupError(
            f"--model {min(unknown)}=...: no call is of such an agent or model; there are "
            + ", ".join(sorted(who))
        )
    in_catalogue = {each.name for each in known.model}

    def named(call: FileCall) -> str:
        for each in (f"{call.app}/{call.agent}", call.agent, call.model):
            if each in names:
                return names[each]
        served = (call.model or "").lower().rpartition("/")[2]
        for ending in ("", "-instruct", "-chat", "-it"):
            for beginning in ("", "meta-"):
                short = served.removesuffix(ending).removeprefix(beginning)
                if short in in_catalogue:
                    return short
        return plain

    replace = msgspec.structs.replace
    return [
        replace(each, calls=tuple(replace(call, model=named(call)) for call in each.calls))
        for each in workflows
    ]


def _model(text: str) -> tuple[str, str]:
    who, equals, name = text.rpartition("=")
    if not name or (equals and not who):
        raise SetupError(f"'{text}': write --model NAME, or --model AGENT=NAME")
    return who, name


def read_question(options: HardwareOptions, workflows: Sequence[Workflow]) -> HardwareQuestion:
    """Return the question; `workflows` are from `planned_workflows`.

    Raises SetupError, InvalidFile: what is wrong with an option or a file, and what to do.
    """
    known = load_catalogue(options.catalogue)
    targets = parse_targets(options.targets)
    if options.hardware is None:
        devices = tuple(each for each in known.accelerator if each.kind == "accelerator")
    else:
        names = [name.strip() for name in options.hardware.split(",")]
        devices = tuple(known.accelerator_named(name) for name in names)
    measured = dict(_profile(text) for text in options.profiles)
    if unknown := {each.partition("@")[0] for each in measured} - {each.name for each in devices}:
        raise SetupError(f"--profile names {min(unknown)}, which is not among the hardware")
    if options.late_usd is not None and options.objective != "cost":
        raise SetupError("--late-usd is for --objective cost: leave out one of them")
    rate = _positive("--rate", options.rate)
    if rate is None:
        rate = 1.0 if options.objective == "tokens" else busiest_rate(workflows)
    agents = agent_names(workflows)
    models = {name: known.model_named(model) for (_, model), name in agents.items()}
    return HardwareQuestion(
        workflows=observed_calls(workflows, agents),
        workflows_per_s=rate,
        offer=HardwareOffer(
            devices=devices,
            model=next(iter(models.values())),
            models=models,
            precision=options.precision,
            terms=options.terms,
            most_devices=options.max_devices,
            pairs=options.pairs,
            measured=measured,
            resource_usd={each.name: each.usd_per_hour for each in known.resource},
        ),
        p95_s=targets.get("p95", math.inf),
        usd_per_hour=_positive("--budget", options.budget) or math.inf,
        usd_per_s_late=math.inf if options.late_usd is None else options.late_usd,
        targets=LatencyTargets(
            ttft_s=targets.get("ttft", math.inf), tpot_s=targets.get("tpot", math.inf)
        ),
        link=Link(gbit_s=_positive("--link-gbit", options.link_gbit) or 400.0),
        most_kinds=options.max_kinds,
        split=options.split,
        objective=options.objective,
        have=_amounts("--have", options.have, [*(each.name for each in devices), *CAPACITY_UNITS]),
        worker=_worker(options.worker),
    )


def _amounts(option: str, texts: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """Return numbers by name, from `h100=8,cores=64`. Raises SetupError."""
    found: dict[str, float] = {}
    for each in (one.strip() for text in texts for one in text.split(",")):
        name, _, amount = each.partition("=")
        if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", amount) is None or name not in names:
            raise SetupError(f"'{each}': write {option} NAME=AMOUNT; names are {', '.join(names)}")
        found[name] = float(amount)
    return found


def _worker(text: str | None) -> Worker:
    found = {} if text is None else _amounts("--worker", [text], ["cores", "memory"])
    usual = Worker()
    return Worker(
        cores=found.get("cores", usual.cores), memory_gib=found.get("memory", usual.memory_gib)
    )


def todays_pool(
    options: HardwareOptions, asked: HardwareQuestion
) -> tuple[HardwareQuestion, dict[str, int]]:
    """Return the pool that there is, as `--from` has it, and a question whose hardware has it.

    Raises SetupError: the text names no pool, or a device that the catalogue does not have.
    """
    assert options.today is not None
    known = load_catalogue(options.catalogue)
    pool: dict[str, int] = {}
    for each in options.today.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,6})\s*x\s+(\S.*?)\s*", each)
        if match is None or not int(match[1]):
            raise SetupError(
                f"'{each.strip()}': write --from \"4 x a100, 2 x h100-tp2\", with the names that "
                "plans give to instances"
            )
        pool[match[2]] = pool.get(match[2], 0) + int(match[1])
    names = {each.name for each in asked.offer.devices}
    devices = [*asked.offer.devices]
    for device in known.accelerator:
        used = any(re.match(rf"{re.escape(device.name)}(-tp|-pp|-ep| |$)", name) for name in pool)
        if used and device.name not in names:
            devices.append(device)
    replace = msgspec.structs.replace
    return replace(asked, offer=replace(asked.offer, devices=tuple(devices))), pool


def parse_targets(texts: Sequence[str]) -> Mapping[str, float]:
    """Return seconds by name, from `p95=30s` and `ttft=250ms`. Raises SetupError."""
    found: dict[str, float] = {}
    for text in texts:
        for each in text.split(","):
            match = re.fullmatch(r"\s*(\w+)=([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)\s*", each)
            if match is None or match[1] not in TARGETS or not float(match[2]):
                raise SetupError(
                    f"'{each}' is not a target: write p95=30s for whole workflows, ttft=250ms or "
                    "tpot=20ms for calls"
                )
            found[match[1]] = float(match[2]) * _SECONDS[match[3]]
    return found


def _profile(text: str) -> tuple[str, EngineRates]:
    device, equals, name = text.partition("=")
    if not (device and equals and name):
        raise SetupError(f"'{text}': write --profile DEVICE=PROFILE, such as h100=./gpu1.toml")
    return device, measured_rates(load_profile(name))


def _positive(option: str, value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise SetupError(f"{option} is {value:g}; give more than 0")
    return value


def busiest_rate(workflows: Sequence[Workflow]) -> float:
    """Return workflows a second in the file's busiest ten minutes, or over all of a shorter file.

    Raises SetupError: the file does not tell when workflows began.
    """
    begins = sorted(
        at / 1000 for each in workflows if (at := each.calls[0].workflow_start_ms) is not None
    )
    if len(begins) < len(workflows) or begins[-1] <= begins[0]:
        raise SetupError(
            "the file does not tell when its workflows began: give --rate, workflows a second"
        )
    span = begins[-1] - begins[0]
    if span <= WINDOW_S:
        return len(begins) / span
    first = most = 0
    for last, begin in enumerate(begins):
        while begins[first] < begin - WINDOW_S:
            first += 1
        most = max(most, last - first + 1)
    return most / WINDOW_S


def agent_names(workflows: Sequence[Workflow]) -> dict[tuple[str, str], str]:
    """Return names of agents by their model: APP/AGENT, or with several models APP/AGENT@MODEL.

    Agents with least tokens are pooled, by model.
    """
    tokens: dict[tuple[str, str], int] = {}
    for each in workflows:
        for call in each.calls:
            key = _agent(call), call.model or ""
            tokens[key] = tokens.get(key, 0) + call.prompt_tokens + call.completion_tokens
    by_tokens = sorted(tokens, key=lambda key: (-tokens[key], key))
    bases = {key: key[0] for key in by_tokens[:MAX_AGENTS]}
    bases |= dict.fromkeys(by_tokens[MAX_AGENTS:], OTHERS)
    models = {base: {key[1] for key in bases if bases[key] == base} for base in bases.values()}
    return {
        key: f"{base}@{key[1]}" if len(models[base]) > 1 else base for key, base in bases.items()
    }


def observed_calls(
    workflows: Sequence[Workflow], names: Mapping[tuple[str, str], str] | None = None
) -> list[list[ObservedCall]]:
    """Return the workflows in the planner's terms. `names`: from `agent_names`."""
    known = agent_names(workflows) if names is None else names
    return [
        [
            ObservedCall(
                agent=known[_agent(call), call.model or ""],
                prompt_tokens=call.prompt_tokens,
                answer_tokens=call.completion_tokens,
                # Engines cache whole blocks.
                cached_tokens=(call.cached_prefix_tokens or 0) // BLOCK * BLOCK,
                gap_s=(call.gap_ms or 0) / 1000,
                by_person=call.upstream == "user",
                after=after,
            )
            for call, after in zip(each.calls, each.waits_for, strict=True)
        ]
        for each in workflows
    ]


def _agent(call: FileCall) -> str:
    return f"{call.app}/{call.agent}"


def change_question(asked: HardwareQuestion, text: str) -> HardwareQuestion:
    """Return the question with one thing multiplied.

    `text`: `load=2`, `target=0.5`, `price:h100=0.5` or `link=2`. Raises SetupError: that is nothing
    that can be changed.
    """
    match = re.fullmatch(r"(load|target|link|price:([\w.-]+))=([0-9]{1,6}(?:\.[0-9]{1,6})?)", text)
    if match is None or not float(match[3]):
        raise SetupError(
            f"'{text}': write load=2, target=0.5, link=2 or price:DEVICE=0.5, by how much it is "
            "multiplied"
        )
    factor, replace = float(match[3]), msgspec.structs.replace
    if match[1] == "load":
        return replace(asked, workflows_per_s=asked.workflows_per_s * factor)
    if match[1] == "target":
        return replace(asked, p95_s=asked.p95_s * factor)
    if match[1] == "link":
        return replace(asked, link=replace(asked.link, gbit_s=asked.link.gbit_s * factor))
    devices = [*asked.offer.devices]
    names = [each.name for each in devices]
    if match[2] not in names:
        raise SetupError(f"'{text}': {match[2]} is not among the hardware: {', '.join(names)}")
    device = devices[at := names.index(match[2])]
    prices = {
        name: replace(price, usd=price.usd * factor)
        for name in ("bought", "rented")
        if (price := getattr(device, name)) is not None
    }
    devices[at] = replace(device, **prices)
    return replace(asked, offer=replace(asked.offer, devices=tuple(devices)))


class HardwareAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Question with its plan, and what was asked for in addition."""

    asked: HardwareQuestion
    plan: HardwarePlan
    others: Mapping[str, HardwarePlan] = {}  # plans of changed questions, by what was changed
    why: Reasons | None = None
    steps: Migration | None = None  # from today's pool
    times: SimulatedTimes | None = None  # of a simulation of the chosen pool


def plan_options(options: HardwareOptions) -> HardwareAnswer:
    """Plan hardware as the options ask for it.

    Raises SetupError, InvalidFile: an option or a file is wrong; the message says what to do.
    """
    workflows = planned_workflows(options)
    asked = read_question(options, workflows)
    changes = {text: change_question(asked, text) for text in options.what_if}
    found = plan_hardware(asked)
    others = {text: plan_hardware(changed) for text, changed in changes.items()}
    why = give_reasons(asked, found) if found.met and asked.objective == "cost" else None
    steps = None
    if options.today is not None:
        from_today, pool = todays_pool(options, asked)
        steps = plan_migration(from_today, found, pool)
    times = simulate_plan(asked, found, workflows) if options.simulate else None
    return HardwareAnswer(asked=asked, plan=found, others=others, why=why, steps=steps, times=times)
