"""Runs whose journal is on Kafka, so that another host can go on with them."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec
from confluent_kafka import OFFSET_END

from kairos import config
from kairos.errors import SetupError
from kairos.live.kafka.cluster import KafkaCluster, cluster_of
from kairos.live.kafka.topic_setup import ensure
from kairos.live.runs.run_places import RunPlaces, without_places
from kairos.live.runs.run_store import RunDirectory, RunRecord, RunStore
from kairos.live.runs.run_topic import RunTopic
from kairos.live.runs.run_topic_reader import LogPlace, await_silence, latest_record
from kairos.plan.pipeline import Passes
from kairos.topics import RUNS

# Of an executor, which tells of itself every two seconds; then it is taken for dead.
SILENCE_S = 15.0
_NOBODY = "-"  # no writer is called so
_NEWS = ("state", "detail", "figures", "took_s")  # of a run, from whichever host had it last


def run_cluster(bus: str, config_file: str | None, environ: Mapping[str, str]) -> KafkaCluster:
    """`config_file`: whose table [kafka] says how to be let in.

    Raises:
        SetupError: this is no cluster, or one of its options is wrong.
    """
    path = None if config_file is None else Path(config_file)
    cluster = cluster_of(config.load(path, {}, {"bus": bus}), environ)
    if cluster is None:
        raise SetupError("--bus of a run is kafka://HOST:PORT[,HOST:PORT]; leave it out for none")
    return cluster


async def run_topic(record: RunRecord, environ: Mapping[str, str]) -> RunTopic | None:
    """The run's log; None: it is in its directory alone. Raises SetupError: it cannot be used."""
    if record.bus is None:
        return None
    cluster = run_cluster(record.bus, record.bus_config, environ)
    await ensure(cluster, [RUNS])
    return RunTopic(cluster, record.id, record.large_values)


def find_run(
    store: RunStore,
    run: str,
    bus: str | None,
    config_file: Path | None,
    environ: Mapping[str, str],
    places: RunPlaces | None = None,
) -> tuple[RunDirectory, RunRecord]:
    """A run, and what is known of it: here, and where its journal is on a bus, there. It has a
    directory here from then on.

    Args:
        run: how its name begins; all of it, where this host has nothing of the run.
        bus, config_file: None: those that it has.
        places: where this host has what it is about, if elsewhere than the run says; where it has
            nothing of the run, all of it. None: whoever asks knows that by itself.

    Raises:
        SetupError: there is no such run, its bus cannot be read, it was cancelled, or it is of
            another host, and `places` do not say all that it needs.
    """
    directory, record = _found(store, run, bus, config_file, environ, places)
    if record.state == "cancelled":
        raise SetupError(f"{record.id} was cancelled: its results are gone; begin a new run")
    return directory, record


def _found(
    store: RunStore,
    run: str,
    bus: str | None,
    config_file: Path | None,
    environ: Mapping[str, str],
    places: RunPlaces | None,
) -> tuple[RunDirectory, RunRecord]:
    bus_config = None if config_file is None else str(config_file.absolute())
    here = store.find(run) if bus is None else store.having(run)
    if here is None:
        assert bus is not None
        told = _known(run, bus, run_cluster(bus, bus_config, environ))
        if places is not None:
            places.check_named(told)
        ours = msgspec.structs.replace(without_places(told), bus=bus, bus_config=bus_config)
        ours = (places or RunPlaces()).onto(ours)
        return store.create(ours), ours
    record = (places or RunPlaces()).onto(here.read())
    if record.bus is None:
        if bus is not None:
            raise SetupError(f"{record.id} was begun without --bus: its journal is here alone")
        return here, record
    bus, bus_config = bus or record.bus, bus_config or record.bus_config
    latest = _told(record.id, run_cluster(bus, bus_config, environ))
    news = {} if latest is None else {name: getattr(latest, name) for name in _NEWS}
    return here, msgspec.structs.replace(record, bus=bus, bus_config=bus_config, **news)


def stand_by(
    store: RunStore,
    run_id: str,
    bus: str,
    config_file: Path | None,
    environ: Mapping[str, str],
    places: RunPlaces,
) -> RunRecord | None:
    """Wait until nobody executes a run that is under way. None: that is so now; else what became of
    it meanwhile.

    Raises:
        SetupError: the bus knows of no such run, or cannot be read; or the run is of another host,
            and `places` do not say all that it needs.
    """
    cluster = run_cluster(bus, None if config_file is None else str(config_file), environ)
    known = _known(run_id, bus, cluster)
    if store.having(run_id) is None:
        places.check_named(known)  # rather now than when it is needed
    await_silence(cluster, run_id, lambda told: _record(told, run_id).state != "running", SILENCE_S)
    told = _told(run_id, cluster)
    return None if told is None or told.state == "running" else told


def tell_cancelled(record: RunRecord, environ: Mapping[str, str]) -> None:
    """To whoever executes the run elsewhere, which ends, and to whoever would resume it.

    Raises:
        SetupError: its bus cannot be used.
    """
    topic = asyncio.run(run_topic(record, environ))
    if topic is None:
        return
    try:
        # Nothing that was found out is needed: so neither are values that are elsewhere.
        topic.begin(
            lambda part: LogPlace(part, OFFSET_END, _NOBODY), lambda _: None, lambda _: None
        )
        topic.tell(msgspec.json.encode(record))
        topic.settle()
    finally:
        topic.close()


def _known(run_id: str, bus: str, cluster: KafkaCluster) -> RunRecord:
    told = _told(run_id, cluster)
    if told is None:
        raise SetupError(f"{bus} knows of no run '{run_id[:64]}' (its whole name is needed)")
    return told


def _told(run_id: str, cluster: KafkaCluster) -> RunRecord | None:
    asyncio.run(ensure(cluster, [RUNS]))
    told = latest_record(cluster, run_id)
    return None if told is None else _record(told, run_id)


def _record(told: bytes, run_id: str) -> RunRecord:
    try:
        record = msgspec.json.decode(told, type=RunRecord)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SetupError(f"what {RUNS} tells of {run_id[:64]} is no run: {error}") from None
    if record.id != run_id:
        raise SetupError(f"what {RUNS} tells of {run_id[:64]} is of another run")
    if unknown := record.passes.keys() - set(Passes.__struct_fields__):
        shown = ", ".join(sorted(each[:64] for each in unknown)[:5])
        raise SetupError(f"the run {run_id} has passes that are not known here: {shown}")
    return record
