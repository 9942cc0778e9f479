"""Settings: defaults, then the file, then the environment, then the command line."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import msgspec

from kairos.core import (
    IDLE_S,
    LONE_TENANT_SHARE,
    MAX_WAIT_S,
    MAX_WAITING,
    NAME_PATTERN,
    PLACEMENT_NAMES,
    POLICY_NAMES,
    SECOND,
    SUSPICION_S,
    Budget,
    SetupError,
    check_name,
)
from kairos.settings.addresses import is_loopback
from kairos.settings.batches import BatchSettings
from kairos.settings.engines import EngineSettings, check_engines
from kairos.settings.flows import FlowSettings
from kairos.settings.key_file import read_keys, with_instants
from kairos.settings.oidc import OidcSettings, check_oidc
from kairos.settings.retrieval import RetrievalSettings
from kairos.settings.telemetry import TelemetrySettings
from kairos.settings.tenants import (
    KeySettings,
    QuotaSettings,
    ServiceClassSettings,
    TenantSettings,
    check_classes,
    check_keys,
    check_quotas,
    check_size,
    check_tenants,
)
from kairos.settings.tls import TlsFiles, check_port_files

STALL_S, ANSWER_S, LONGEST_ANSWER_S = 120, 600, 3600

# vLLM's own default; an engine tells its KV memory, but not this.
MAX_NUM_SEQS = 256
MAX_POOLS = 256  # between which one gateway spreads workflows
MAX_WORKERS = 64  # processes that perform calls on one host
_BODY_FIELD = re.compile(r"user|prompt_cache_key|metadata(\.[A-Za-z0-9_-]{1,64}){1,4}")
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
_LISTS = {"engine", "key", "tenant", "quota", "service_class"}
_OTHERS = {"identity", "tokenizer", "kafka", "oidc", "batches", "flows", "retrieval", "telemetry"}
# In the environment with commas.
_LISTED = {"admin_hosts", "allowed_hosts", "cors_origins", "pools"}
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\sA-Z,*]+")
_SECRET = re.compile(r"password|secret|passphrase|key\.pem|oauthbearer\.config")
_TABLES = _LISTS | _OTHERS


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `kairos serve`.

    In the file, `[[engine]]`, `[[key]]`, `[[tenant]]`, `[[quota]]` and `[[service_class]]` are
    tables.
    """

    host: str = "127.0.0.1"  # address of OpenAI's API
    port: int = 8000  # 0: any free one
    # Address of the operators' routes. Beyond loopback they ask for a key or a token with a role.
    admin_host: str = "127.0.0.1"
    admin_port: int = 8001  # of the operators' routes; 0: any free one
    # Host names for requests to the operators' routes, in addition to localhost and addresses.
    admin_hosts: tuple[str, ...] = ()
    # Host names that requests to either port may use while no key is required, in addition to
    # addresses, localhost and this machine's own name; `*`: any, at the callers' port.
    allowed_hosts: tuple[str, ...] = ()
    # TLS on both ports, from two files in PEM; both are read again when they change.
    tls_certificate: str | None = None  # with what leads to its authority behind it
    tls_key: str | None = None  # the certificate's private key, without a passphrase
    tls_client_ca: str | None = None  # require client certificates signed by a CA in this file
    admin_tls_client_ca: str | None = None  # the same for the operators' port, in its place
    workers: int = 0  # processes that perform calls; one more decides. 0: one process does both
    policy: str = "kairos"  # the order of the queue
    placement: str = "kairos"  # the choice of the instance
    max_waiting: int = MAX_WAITING  # requests in the queue
    # The longest wait in the queue: then a call is refused.
    max_wait_s: int = MAX_WAIT_S
    budget_calls: int | None = None  # most calls of a workflow; a client can ask for fewer
    budget_tokens: int | None = None  # most tokens of a workflow: prompts and answers
    budget_s: int | None = None  # maximum duration of a workflow, from its first call on
    stall_s: int = STALL_S  # longest silence of a stream; mostly noticed sooner
    answer_s: int = ANSWER_S  # timeout for non-streaming answers
    # Bound to which a client that declares a longer timeout extends `stall_s` and `answer_s`.
    longest_answer_s: int = LONGEST_ANSWER_S
    # Further headers that pass from clients' requests to engines, with the usual ones; `x-lab-*`
    # stands for all that begin so. Credentials, cookies, and what Kairos sets itself never pass.
    pass_headers: tuple[str, ...] = ()
    # Separate the tenants' prompts in engines' prefix caches (vLLM's and SGLang's `cache_salt`), so
    # that no tenant can infer another's prompts from a faster answer or from `cached_tokens`.
    cache_salt: bool = False
    # The longest that a call suspected of killing an engine waits for an engine of its own.
    suspicion_s: int = SUSPICION_S
    workflow_idle_s: int = IDLE_S  # a workflow without calls for this long has ended
    max_body_bytes: int = 32 << 20  # the largest body of a request
    max_held_bytes: int = 1 << 30  # the most of all bodies in flight together
    # Connections of clients, of each process; at most three quarters of the files it may have open.
    max_connections: int = 16_384
    # Longest idle time of a client's connection between two requests, in seconds. Longer than that
    # of proxies in front (Google's: 600 s), so that they close first and no request is lost.
    client_idle_s: int = 620
    # Origins of web pages that may send requests (CORS), such as https://chat.example; `*`: all.
    cors_origins: tuple[str, ...] = ()
    # Share of connections, bytes of bodies and waiting requests that one caller may have while no
    # other has any. A caller is a tenant or, before its key is known, an address. 1: all.
    caller_share: float = LONE_TENANT_SHARE
    log_dir: str | None = None  # directory of the log: facts and decisions, no bodies
    audit_log: str | None = None  # file of operators' actions and refusals; bounded
    bus: str = "memory"  # or kafka://HOST:PORT[,HOST:PORT]: several processes share the work
    pool: str = "default"  # on a bus: the engines for which decisions are made in one place
    # On a bus: the pools (cells) between which `kairos serve` spreads workflows. Each has a `kairos
    # balance` of its own, and every engine names its `pool`.
    pools: tuple[str, ...] = ()
    learnt_path: str | None = None  # file of learnt profiles; none: learnt.json next to the log
    infer: bool = True  # infer agent, workflow and parents where a call does not declare them
    engine: tuple[EngineSettings, ...] = ()  # see below
    key: tuple[KeySettings, ...] = ()  # see below; without any key, everyone may call
    service_class: tuple[ServiceClassSettings, ...] = ()  # see below; added to the built-in ones
    quota: tuple[QuotaSettings, ...] = ()  # see below; limits of tenants, apps and keys
    # File of more keys, maintained by `kairos keys`. With it every call needs a key, even while the
    # file has none.
    keys_path: str | None = None
    oidc: OidcSettings | None = None  # see below; also accept signed tokens of an identity provider
    batches: BatchSettings | None = None  # see below; OpenAI's files and batches
    flows: FlowSettings | None = None  # see below; flows that clients keep and invoke
    retrieval: RetrievalSettings | None = None  # see below; what flows retrieve with
    telemetry: TelemetrySettings | None = None  # see below; traces of calls and workflows
    tenant: tuple[TenantSettings, ...] = ()  # see below; weights of tenants and their apps
    # Fields of a request's body that name workflow_id, app, agent or upstream: `user`,
    # `prompt_cache_key`, or a member of `metadata`, as in `metadata.run`.
    identity: Mapping[Literal["workflow_id", "app", "agent", "upstream"], str] = {}
    # By model: the path of its tokenizer.json, to count prompts with. Prompts of other models are
    # estimated.
    tokenizer: Mapping[str, str] = {}
    # Options of the Kafka client, as librdkafka names them. A name that ends in `_env` names the
    # environment variable with the value.
    kafka: Mapping[str, str] = {}

    def __repr__(self) -> str:
        shown = msgspec.structs.replace(self, kafka=dict.fromkeys(self.kafka, "..."))
        return msgspec.Struct.__repr__(shown)

    @property
    def admin_names(self) -> tuple[str, ...]:
        """Host names that are allowed for the operators' routes."""
        return (*self.admin_hosts, *self.allowed_hosts, self.admin_host)

    @property
    def asks_for_keys(self) -> bool:
        """Whether every caller needs a key or a token."""
        return bool(self.key) or self.keys_path is not None or self.oidc is not None

    @property
    def asks_operators(self) -> bool:
        """Whether the operators' routes need a key or token with a role."""
        has_role_claim = self.oidc is not None and self.oidc.role_claim is not None
        return has_role_claim or any(key.role != "caller" for key in self.key)

    @property
    def budget(self) -> Budget:
        wall_us = None if self.budget_s is None else self.budget_s * SECOND
        return Budget(self.budget_calls, self.budget_tokens, wall_us)

    @property
    def is_over_pools(self) -> bool:
        """Whether this process spreads workflows over `pools`, and decides for none of them."""
        return bool(self.pools) and self.pool not in self.pools

    @property
    def own_engines(self) -> tuple[EngineSettings, ...]:
        """Engines that this process uses: its pool's or, over several pools, all engines."""
        if self.is_over_pools:
            return self.engine
        return tuple(each for each in self.engine if each.pool in (None, self.pool))

    @property
    def pool_share(self) -> Fraction:
        """Part of the engines of all `pools` that are in this process's pool; 1 without `pools`.

        The pool enforces this part of every quota.
        """
        if not self.pools or self.is_over_pools:
            return Fraction(1)
        return Fraction(len(self.own_engines), len(self.engine))

    @property
    def learnt_file(self) -> Path | None:
        """File of learnt profiles; None: they are lost when Kairos stops."""
        if self.learnt_path is not None:
            return Path(self.learnt_path)
        return Path(self.log_dir, "learnt.json") if self.log_dir is not None else None


def load_settings(
    path: Path | None, environ: Mapping[str, str], arguments: Mapping[str, Any]
) -> Settings:
    """Load and check the settings.

    Args:
        path: The file of settings, if there is one.
        environ: `KAIROS_PORT` and so on set the plain settings (not engines, keys and tenants).
        arguments: From the command line; None means not given.

    Raises:
        SetupError: A value is invalid; the message names it and the valid ones.
    """
    given: dict[str, Any] = {} if path is None else _read_file(path)
    for field in msgspec.structs.fields(Settings):
        if field.name not in _TABLES:
            value = environ.get(f"KAIROS_{field.name.upper()}")
            if value:
                given[field.name] = split_list(value) if field.name in _LISTED else value
    given.update({name: value for name, value in arguments.items() if value is not None})
    try:
        settings = msgspec.convert(given, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise SetupError(f"settings: {error}") from None
    if settings.keys_path is not None:
        keys = (*settings.key, *read_keys(Path(settings.keys_path)))
        settings = msgspec.structs.replace(settings, key=keys)
    _check(settings, environ)
    return settings


def split_list(told: str) -> list[str]:
    """Split a list with commas, as in the environment and on the command line."""
    return [name for each in told.split(",") if (name := each.strip())]


def _read_file(path: Path) -> dict[str, Any]:
    try:
        given = tomllib.loads(path.read_text("utf-8"))
        if isinstance(options := given.get("kafka"), dict):
            given["kafka"] = dict(_flat(options))
            _check_private(path, given["kafka"])
        if "key" in given:
            given["key"] = with_instants(given["key"])
        msgspec.convert(given, Settings)
    except OSError as error:
        raise SetupError(f"--config {path}: {error.strerror}") from None
    except (ValueError, RecursionError, msgspec.ValidationError) as error:  # TOML's among them
        raise SetupError(f"--config {path}: {error}") from None
    return given


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield options with dotted names, which TOML parses as nested tables unless quoted."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:  # librdkafka takes text alone; what is no option, the settings' types refuse
            text = str(value).lower() if isinstance(value, bool | int) else value
            yield prefix + name, text


def _check_private(path: Path, options: Mapping[str, Any]) -> None:
    """Check that a file with secrets is private. Raises SetupError: Others can read it."""
    for name in options:
        if _SECRET.search(name) and not name.endswith("_env") and path.stat().st_mode & 0o077:
            raise SetupError(
                f"--config {path} holds '{name}' and others can read it: 'chmod 600 {path}', or "
                f'write "{name}_env" = "VARIABLE" and put it into the environment'
            )


def _check(settings: Settings, environ: Mapping[str, str]) -> None:
    check_name("policy", settings.policy, POLICY_NAMES)
    check_name("placement", settings.placement, PLACEMENT_NAMES)
    if not re.match(NAME_PATTERN, settings.pool):
        raise SetupError(
            f"'{settings.pool}' is not a valid pool name (letters, digits, _ -, at most 64)"
        )
    _check_places(settings)
    for name in (
        "max_waiting",
        "max_wait_s",
        "stall_s",
        "answer_s",
        "longest_answer_s",
        "suspicion_s",
        "workflow_idle_s",
        "max_body_bytes",
        "max_held_bytes",
        "max_connections",
        "client_idle_s",
        "budget_calls",
        "budget_tokens",
        "budget_s",
    ):
        if (value := getattr(settings, name)) is not None and value < 1:
            raise SetupError(f"{name} must be at least 1")
    if not 0 < settings.caller_share <= 1:
        raise SetupError("caller_share must be above 0, and 1 at most")
    if not 0 <= settings.workers <= MAX_WORKERS:
        raise SetupError(f"workers {settings.workers} is out of range (0 to {MAX_WORKERS})")
    if settings.workers and settings.bus != "memory":
        raise SetupError(
            "leave out --workers: with --bus several `kairos serve` of one pool share the work"
        )
    check_engines(settings.engine, environ)
    _check_pools(settings)
    check_keys(settings.key)
    check_classes(settings.service_class, settings.key)
    if settings.oidc is not None:
        check_oidc(settings.oidc)
    keys_change = settings.keys_path is not None or settings.oidc is not None
    check_quotas(settings.quota, settings.key, keys_change=keys_change)
    check_tenants(settings.tenant, settings.key, keys_change=keys_change)
    check_size(settings.tenant, settings.service_class, settings.quota)
    for name, path in settings.identity.items():
        if not _BODY_FIELD.fullmatch(path):
            raise SetupError(
                f"identity.{name}: '{path}' is not one of user, prompt_cache_key, metadata.NAME"
            )


def _check_pools(settings: Settings) -> None:
    pools, engines = settings.pools, settings.engine
    if settings.bus == "memory":
        named = next((f"engine {each.id}: pool" for each in engines if each.pool is not None), None)
        if pools or named is not None:
            what = named or "pools"
            raise SetupError(f"{what}: needs --bus kafka://HOST:PORT; leave it out without a bus")
    elif pools:
        _check_pool_names(pools, engines)
        known = ", ".join(pools)[:1000]
        for engine in engines:
            if engine.pool not in pools:
                raise SetupError(f"engine {engine.id}: write its pool, one of {known}")
        if settings.pool not in (Settings().pool, *pools):
            raise SetupError(f"pool '{settings.pool}' is not one of pools ({known})")


def _check_pool_names(pools: tuple[str, ...], engines: tuple[EngineSettings, ...]) -> None:
    if len(pools) > MAX_POOLS:
        raise SetupError(f"{len(pools)} pools are too many: at most {MAX_POOLS}")
    named = {each.pool for each in engines}
    for name in pools:
        if not re.match(NAME_PATTERN, name):
            raise SetupError(f"pools: '{name}' is not a valid pool name (letters, digits, _ -)")
        if pools.count(name) > 1:
            raise SetupError(f"pools: '{name}' is named twice")
        if name not in named:
            raise SetupError(f"pools: '{name}' has no engine; write pool = \"{name}\" below one")


def _check_places(settings: Settings) -> None:
    for name in ("port", "admin_port"):
        if not 0 <= getattr(settings, name) <= 65535:
            raise SetupError(f"{name} {getattr(settings, name)} is not a port (0 to 65535)")
    for setting, others in (("admin_hosts", ()), ("allowed_hosts", ("*",))):
        for name in getattr(settings, setting):
            if name not in others and not _HOST_NAME.fullmatch(name):
                raise SetupError(f"{setting}: '{name}' is not a host name (no scheme, no port)")
    for origin in settings.cors_origins:
        if not _ORIGIN.fullmatch(origin):
            raise SetupError(
                f"cors_origins: '{origin}' is not an origin like https://chat.example, in lower "
                "case and without a path"
            )
    is_guarded = settings.asks_operators or settings.admin_tls_client_ca is not None
    if not is_loopback(settings.admin_host) and not is_guarded:
        raise SetupError(
            f"admin_host {settings.admin_host} can be reached from elsewhere, and nothing says who "
            "is an operator: give a key the role viewer or admin (kairos keys create --role admin),"
            " or set role_claim of [oidc], or admin_tls_client_ca; or leave it at 127.0.0.1"
        )
    files = TlsFiles(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
    check_port_files(files, settings.admin_tls_client_ca)


def default_api_key(variable: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the key in a variable of the environment; None without a variable.

    Raises SetupError: The variable is not set, or empty.
    """
    if variable is None:
        return None
    if not environ.get(variable):
        raise SetupError(f"the variable {variable} is not set")
    return environ[variable]
