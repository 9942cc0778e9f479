"""File of learnt profiles and models, so that nothing is lost at a restart.

It has numbers per agent and app, and names; nothing of prompts and answers.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec

from kairos.core import (
    FEATURES,
    MAX_SIGHTINGS,
    POOLED_AGENT,
    QUANTILES,
    STEPS,
    AgentKey,
    AgentProfile,
    AgentRank,
    Distribution,
    InvalidFile,
    InvalidRequest,
    JoinPlace,
    ProfilesLearnt,
    Record,
    RemainingModel,
    SetupError,
)
from kairos.host import atomic_write

logger = logging.getLogger(__name__)

SAVE_S = 5.0
LIMIT_BYTES = 64 << 20  # for all profiles and models together; some 17,000 agents
_SLACK_BYTES = 16 << 20  # for ranks and punctuation
_VERSION = 1
_COUNTS = range(1 << 53)
_MOST = 1e18  # maximum of any figure
_NAMES = 128  # characters
_BRANCHES = 10_000  # maximum of branches of a sighting

_Key = tuple[str, ...]  # kind of entry, and its owner
_encode = msgspec.json.Encoder().encode


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """The file as it is read."""

    version: Annotated[int, msgspec.Meta(ge=_VERSION, le=_VERSION)]
    profiles: tuple[AgentProfile, ...]
    models: tuple[RemainingModel, ...]
    ranks: tuple[AgentRank, ...]
    kendall_tau: float | None
    joins: tuple[JoinPlace, ...] = ()


class _Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The file as it is written: most of its parts were encoded when they were learnt."""

    version: int = _VERSION
    profiles: list[msgspec.Raw]
    models: list[msgspec.Raw]
    ranks: tuple[AgentRank, ...]
    kendall_tau: float | None
    joins: list[msgspec.Raw] = []


class LearntStore:
    """Observer that stores the last published values of each agent and app in a file.

    Bounded: beyond `limit_bytes`, the values learnt longest ago are dropped.
    """

    def __init__(self, path: Path, *, limit_bytes: int = LIMIT_BYTES) -> None:
        """Prepare the directory of the file.

        Raises:
            SetupError: the path cannot be used for a file.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            usable = path.is_file() or not path.exists()
        except OSError as error:
            raise SetupError(f"cannot save learnt profiles in {path}: {error.strerror}") from None
        if not usable:
            raise SetupError(f"cannot save learnt profiles in {path}: it is not a file")
        self._path, self._limit_bytes = path, limit_bytes
        self._parts: dict[_Key, bytes] = {}  # in order of learning, oldest first
        self._bytes = 0
        self._ranks: dict[AgentKey, AgentRank] = {}
        self._tau: float | None = None
        self._changed = self._failing = False

    def __call__(self, record: Record) -> None:
        if type(record.event) is ProfilesLearnt:
            self._add_learnt(record.event)

    def read(self) -> ProfilesLearnt | None:
        """Return the content of the file, if there is one.

        An unusable file is renamed, with a warning.
        """
        try:
            known = _read(self._path, self._limit_bytes + _SLACK_BYTES)
        except FileNotFoundError:
            return None
        except (OSError, InvalidFile) as error:
            aside = self._path.with_name(f"{self._path.name}.unusable")
            with suppress(OSError):
                self._path.replace(aside)
            logger.warning("learnt profiles cannot be read (%s); file moved to %s", error, aside)
            return None
        return ProfilesLearnt(
            known.profiles,
            known.models,
            known.ranks,
            kendall_tau=known.kendall_tau,
            joins=known.joins or msgspec.UNSET,
        )

    async def run(self) -> None:
        """Save changes every `SAVE_S`, until cancelled, and then once more."""
        saving: asyncio.Future[None] | None = None
        try:
            while True:
                await asyncio.sleep(SAVE_S)
                if self._changed:
                    writing = asyncio.to_thread(self._write, self._collect())
                    saving = asyncio.ensure_future(writing)
                    await asyncio.shield(saving)
        finally:
            if saving is not None:
                await saving  # or its older content would overwrite the last one
            self.save()

    def save(self) -> None:
        """Write changes, if any. A failure is logged once and retried the next time."""
        if self._changed:
            self._write(self._collect())

    def _add_learnt(self, learnt: ProfilesLearnt) -> None:
        for profile in learnt.profiles:
            self._keep_part(("profile", *profile.key), _encode(profile))
        for model in learnt.models:
            self._keep_part(("model", model.tenant, model.app), _encode(model))
        for place in learnt.joins or ():
            if place.sightings:
                self._keep_part(("join", *place.key), _encode(place))
            else:
                self._drop_part(("join", *place.key))
        for rank in learnt.ranks:
            self._ranks[rank.key] = rank
        for tenant, app, agent in learnt.forgotten:
            self._ranks.pop((tenant, app, agent), None)
            self._drop_part(("profile", tenant, app, agent))
            if agent == POOLED_AGENT:
                self._drop_part(("model", tenant, app))
        if learnt.kendall_tau is not None:
            self._tau = learnt.kendall_tau
        self._changed = True

    def _keep_part(self, key: _Key, part: bytes) -> None:
        self._drop_part(key)
        self._bytes += len(part)
        self._parts[key] = part
        while self._bytes > self._limit_bytes:
            self._drop_part(next(iter(self._parts)))

    def _drop_part(self, key: _Key) -> None:
        self._bytes -= len(self._parts.pop(key, b""))

    def _collect(self) -> _Parts:
        self._changed = False
        parts = self._parts.items()
        return _Parts(
            profiles=[msgspec.Raw(part) for key, part in parts if key[0] == "profile"],
            models=[msgspec.Raw(part) for key, part in parts if key[0] == "model"],
            ranks=tuple(self._ranks.values()),
            kendall_tau=self._tau,
            joins=[msgspec.Raw(part) for key, part in parts if key[0] == "join"],
        )

    def _write(self, parts: _Parts) -> None:
        try:
            with atomic_write(self._path, mode=0o600) as file:
                file.write(_encode(parts))
        except SetupError as error:
            if not self._failing:
                logger.warning("learnt profiles cannot be saved: %s", error)
            self._failing = self._changed = True
        else:
            self._failing = False


def _read(path: Path, limit_bytes: int) -> _Known:
    with path.open("rb") as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise InvalidFile(path, f"larger than {limit_bytes} bytes")
    try:
        known = msgspec.json.decode(content, type=_Known)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidFile(path, f"invalid content: {error}") from error
    if not have_known_shapes(known.profiles, known.models):
        raise InvalidFile(path, "was written by an incompatible version of Kairos")
    try:
        check_learnt(known.profiles, known.models, known.ranks, known.kendall_tau)
        check_joins(known.joins)
    except InvalidRequest as error:
        raise InvalidFile(path, f"has invalid values: {error}") from None
    return known


def have_known_shapes(profiles: Iterable[AgentProfile], models: Collection[RemainingModel]) -> bool:
    """Return whether profiles and models have the shapes that this version expects."""
    sizes = {len(each) for m in models for each in (m.weights, m.lowest, m.highest)}
    cut = [each for p in profiles for each in (p.call_us, p.completion_tokens, p.remaining_us)]
    cuts = {len(each.quantiles) for each in cut if each is not None}
    steps = {m.steps for m in models}
    return steps <= {(), STEPS} and sizes <= {FEATURES} and cuts <= {QUANTILES}


def check_learnt(
    profiles: Sequence[AgentProfile],
    models: Sequence[RemainingModel],
    ranks: Sequence[AgentRank],
    kendall_tau: float | None,
) -> None:
    """Check learnt values from another process.

    Raises:
        InvalidRequest: No process learns such values, and arithmetic may fail on them.
    """
    for profile in profiles:
        _check_names(profile.key)
        _check_counts(profile.samples)
        for cut in (profile.call_us, profile.completion_tokens, profile.remaining_us):
            if cut is not None:
                _check_cut(cut)
        _check_figures((profile.remaining_stages,), lowest=0.0)
    for model in models:
        _check_names((model.tenant, model.app, *model.agents, *model.habits))
        _check_counts(model.samples)
        habits = [each for steps in model.habits.values() for each in steps]
        _check_figures((model.intercept, *model.weights, *model.agents.values(), *model.residuals))
        _check_figures((*model.lowest, *model.highest))
        _check_figures([figure for each in habits for figure in (*each, *each.values())])
    for rank in ranks:
        _check_names(rank.key)
        _check_figures((rank.rank,))
    if kendall_tau is not None and not -1 <= kendall_tau <= 1:
        raise InvalidRequest("Kendall's tau is out of range")


def check_joins(places: Iterable[JoinPlace]) -> None:
    """Check learnt joins from another process.

    Raises:
        InvalidRequest: No process learns such values.
    """
    for place in places:
        if len(place.sightings) > MAX_SIGHTINGS:
            raise InvalidRequest("a place has too many sightings")
        _check_names(place.key)
        _check_counts(place.seen)
        for each in place.sightings:
            if len(each.others) > _BRANCHES:
                raise InvalidRequest("a call has too many branches")
            _check_names((each.agent, each.caller or "", each.branch, *dict(each.others)))
            _check_figures((each.after_us, each.choices, *(end for _, end in each.others)))


def _check_cut(cut: Distribution) -> None:
    _check_figures((cut.mean, *cut.quantiles), lowest=0.0)
    if any(one > other for one, other in pairwise(cut.quantiles)):
        raise InvalidRequest("the parts of a distribution do not ascend")


def _check_figures(figures: Iterable[float], lowest: float = -_MOST) -> None:
    if not all(lowest <= each <= _MOST for each in figures):  # also catches NaN
        raise InvalidRequest("a figure is out of range")


def _check_counts(count: int) -> None:
    if count not in _COUNTS:
        raise InvalidRequest("a number of samples is out of range")


def _check_names(names: Iterable[str]) -> None:
    if not all(len(each) <= _NAMES for each in names):
        raise InvalidRequest("a name is too long")
