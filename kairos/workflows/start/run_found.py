"""Finds runs: in their directories here, and where their results are in a database, there."""

import msgspec

from kairos.core import SetupError
from kairos.settings import POSTGRES_URL
from kairos.workflows.compile.pipeline import Passes
from kairos.workflows.run.postgres_results import read_postgres_record
from kairos.workflows.run.run_places import RunPlaces, without_places
from kairos.workflows.run.run_store import RunDirectory, RunRecord, RunStore

_NEWS = ("state", "detail", "figures", "took_s")  # of a run, from the host that had it last
GONE = (
    "runs are no longer kept on Kafka: keep their results in a PostgreSQL that the hosts share, "
    "with --results postgresql://[USER@]HOST[:PORT]/NAME"
)


def check_results(record: RunRecord) -> None:
    """Check where a run's results are to be.

    Raises:
        SetupError: that is not a database, or a Kafka.
    """
    if record.bus is not None:
        raise SetupError(f"{record.id}: {GONE}")
    if record.results is not None:
        check_database(record.results)


def check_database(results: str) -> None:
    """Check the URL of a database for results.

    Raises:
        SetupError: It is malformed, or contains a password.
    """
    if not POSTGRES_URL.fullmatch(results):
        raise SetupError(
            "--results: write postgresql://[USER@]HOST[:PORT]/NAME. A password goes into "
            "PGPASSWORD or ~/.pgpass of each host, what TLS needs into PGSSLMODE and PGSSLROOTCERT"
        )


def find_run(
    store: RunStore, run: str, results: str | None, places: RunPlaces | None = None
) -> tuple[RunDirectory, RunRecord]:
    """Return a run and its record, from this host or from the database with its results.

    It has a directory on this host afterwards.

    Args:
        store: The runs of this host.
        run: A prefix of its name; the whole name if this host does not have the run.
        results: The database; None: the run's own.
        places: Paths on this host, where they differ from the run's; all of them if this host does
            not have the run. None: the caller knows them.

    Raises:
        SetupError: The run is unknown or cancelled, its database cannot be read, or it is of
            another host and `places` are incomplete.
    """
    directory, record = _found(store, run, results, places)
    if record.state == "cancelled":
        raise SetupError(f"{record.id} was cancelled: its results are gone; begin a new run")
    return directory, record


def _found(
    store: RunStore, run: str, results: str | None, places: RunPlaces | None
) -> tuple[RunDirectory, RunRecord]:
    here = store.find(run) if results is None else store.having(run)
    if here is None:
        assert results is not None
        told = _told(results, run)
        if told is None:
            raise SetupError(f"{results} knows of no run '{run[:64]}' (its whole name is needed)")
        if places is not None:
            places.check_named(told)
        ours = msgspec.structs.replace(without_places(told), results=results)
        ours = (places or RunPlaces()).onto(ours)
        return store.create(ours), ours
    record = (places or RunPlaces()).onto(here.read())
    if record.results is None:
        if results is not None:
            raise SetupError(f"{record.id} was begun without --results: they are here alone")
        return here, record
    results = results or record.results
    latest = _told(results, record.id)
    news = {} if latest is None else {name: getattr(latest, name) for name in _NEWS}
    return here, msgspec.structs.replace(record, results=results, **news)


def _told(results: str, run_id: str) -> RunRecord | None:
    check_database(results)
    told = read_postgres_record(results, run_id)
    if told is None:
        return None
    try:
        record = msgspec.json.decode(told, type=RunRecord)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SetupError(f"what the database has of {run_id[:64]} is not a run: {error}") from None
    if record.id != run_id:
        raise SetupError(f"what the database has of {run_id[:64]} is of another run")
    if unknown := record.passes.keys() - set(Passes.__struct_fields__):
        shown = ", ".join(sorted(each[:64] for each in unknown)[:5])
        raise SetupError(f"the run {run_id} has passes that are not known here: {shown}")
    return record
