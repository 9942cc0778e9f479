"""Settings of engines."""

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kairos.core import SECOND, Phase, SetupError
from kairos.settings.tls import TlsFiles, check_pair, client_context

MAX_ENGINES = 1_000  # each is asked once a second how it is
MAX_TOKEN_US = 60 * SECOND
MAX_USD_PER_HOUR = 10**7
MAX_LIMIT = 10**12  # of an engine's sequences and tokens
MAX_URL = 1_000  # characters
_LABEL = r"[A-Za-z0-9_-]{1,63}"
# What is taken by whoever looks up the host, and by the HTTP client, without a complaint.
_URL = re.compile(
    rf"https?://(?:[^/?#\s]*@)?(?:{_LABEL}(?:\.{_LABEL})*\.?|\[[0-9A-Fa-f:.]+(?:%25\w+)?\])"
    r"(?::[0-9]{1,5})?(?:/(?:(?![?#])[!-~])*)?",
    re.ASCII | re.IGNORECASE,
)
_ENGINE_FORM = (
    "URL[,max_num_seqs=N][,kv_tokens=N][,priority=yes|no][,token_us=N][,phase=both|prefill|decode]"
    "[,usd_per_hour=N][,ca=FILE][,client_certificate=FILE][,client_key=FILE]"
)
_WHOLE = r"[0-9]{1,12}"
_FILE = r"[^\0]{1,4096}"
# Options of that form: what their values look like, and what makes settings of them.
_ENGINE_OPTIONS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "max_num_seqs": (_WHOLE, int),
    "kv_tokens": (_WHOLE, int),
    "priority": ("yes|no", "yes".__eq__),
    "token_us": (r"[0-9]{1,12}(\.[0-9]{1,6})?", float),
    "phase": ("both|prefill|decode", str),
    "usd_per_hour": (r"[0-9]{1,7}(\.[0-9]{1,6})?", float),
    **dict.fromkeys(("ca", "client_certificate", "client_key"), (_FILE, str)),
}
_OF_AN_ENGINE = {"certificate": "client_certificate", "key": "client_key"}


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine's address and defaults. Values that the engine reports itself take precedence."""

    url: str  # http://HOST:PORT, without /v1
    api_key_env: str | None = None  # the environment variable that holds the engine's key
    max_num_seqs: int | None = None  # maximum concurrent calls; if unset and unreported: 256
    kv_tokens: int | None = None  # tokens that its KV memory holds
    priority: bool = False  # vLLM was started with --scheduling-policy priority
    token_us: float | None = None  # µs per output token, until measured by calls
    # vLLM with a KV connector: `prefill` computes prompts for `decode` instances, which fetch the
    # caches; `both`: whole calls.
    phase: Phase = "both"
    usd_per_hour: float | None = None  # among equal engines the cheapest is used first
    pool: str | None = None  # on a bus: the pool that it belongs to; none: that of the process
    # For an https:// URL, files in PEM, which are read again when they change. `ca`: authorities
    # that must have signed its certificate; none: those of the system.
    ca: str | None = None
    client_certificate: str | None = None  # that Kairos presents to the engine (mTLS)
    client_key: str | None = None  # that certificate's private key, without a passphrase

    @property
    def id(self) -> str:
        """Name of the instance in logs, metrics and errors: `host:port`."""
        return urlsplit(self.url).netloc.rpartition("@")[2]

    @property
    def tls(self) -> TlsFiles:
        return TlsFiles(self.client_certificate, self.client_key, self.ca)


def parse_engine(text: str) -> EngineSettings:
    """Parse the form in `_ENGINE_FORM`. Raises SetupError: The text has another form."""
    url, *options = text.split(",")
    given: dict[str, Any] = {}
    for option in options:
        name, _, value = option.partition("=")
        form, convert = _ENGINE_OPTIONS.get(name, (r"(?!)", str))
        if not re.fullmatch(form, value, re.ASCII):
            raise SetupError(
                f"--engine {_without_user(text)}: the options after the URL are invalid; "
                f"write {_ENGINE_FORM}"
            )
        given[name] = convert(value)
    return EngineSettings(url=url, **given)


def check_engine(engine: EngineSettings, environ: Mapping[str, str]) -> None:
    """Check an engine's settings.

    Raises SetupError: A value is invalid; the message names it and the valid ones.
    """
    if not is_http_url(engine.url):
        shown = _without_user(engine.url)[:200]
        raise SetupError(f"engine '{shown}' is not a URL like http://127.0.0.1:8101")
    if "@" in urlsplit(engine.url).netloc:
        raise SetupError(f"engine {engine.id}: put its key into api_key_env, not into the URL")
    if engine.api_key_env is not None and not environ.get(engine.api_key_env):
        raise SetupError(f"engine {engine.id}: the variable {engine.api_key_env} is not set")
    _check_figures(engine)
    if engine.tls != TlsFiles():
        if not engine.url.lower().startswith("https://"):
            said = "need an https:// URL"
            raise SetupError(f"engine {engine.id}: ca, client_certificate and client_key {said}")
        check_pair(engine.tls, _OF_AN_ENGINE, f"engine {engine.id}: ")


def _check_figures(engine: EngineSettings) -> None:
    for name in ("max_num_seqs", "kv_tokens"):
        value = getattr(engine, name)
        if value is not None and value < 1:
            raise SetupError(f"engine {engine.id}: {name} must be at least 1")
        if value is not None and value >= MAX_LIMIT:
            raise SetupError(f"engine {engine.id}: {name} must be under {MAX_LIMIT}")
    if engine.token_us is not None and not 0 < engine.token_us < MAX_TOKEN_US:
        raise SetupError(f"engine {engine.id}: token_us must be over 0 and under {MAX_TOKEN_US}")
    if engine.usd_per_hour is not None and not 0 <= engine.usd_per_hour < MAX_USD_PER_HOUR:
        limit = f"0 or more, and under {MAX_USD_PER_HOUR}"
        raise SetupError(f"engine {engine.id}: usd_per_hour must be {limit}")


def check_engines(engines: tuple[EngineSettings, ...], environ: Mapping[str, str]) -> None:
    """Check all engines.

    Raises SetupError: There are too many, one is invalid, or one is named twice.
    """
    if len(engines) > MAX_ENGINES:
        raise SetupError(f"{len(engines)} engines are too many: at most {MAX_ENGINES}")
    for engine in engines:
        check_engine(engine, environ)
        # Not where engines are added by the operators' port: its users could find out which exist.
        if engine.tls != TlsFiles():
            client_context(engine.tls)
    ids = [engine.id for engine in engines]
    if doubled := {engine_id for engine_id in ids if ids.count(engine_id) > 1}:
        raise SetupError(f"engine {doubled.pop()} is named twice")


def is_http_url(url: str) -> bool:
    try:
        is_plain = len(url) <= MAX_URL and _URL.fullmatch(url) is not None
        return is_plain and urlsplit(url).port != 0
    except ValueError:  # brackets or a port that make no sense
        return False


def _without_user(url: str) -> str:
    """Return the URL for a message: the part before an @ may be a password."""
    return re.sub(r"^(\w+://)?.*@", r"\1...@", url, flags=re.DOTALL)
