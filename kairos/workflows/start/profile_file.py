"""File with what some rows taught about a flow, next to the flow."""

from pathlib import Path

import msgspec

from kairos.core import SECOND, InvalidFile
from kairos.host import atomic_write
from kairos.workflows.compile.flow_profile import PROFILE_FORMAT, FlowProfile

_BYTES = 16 << 20  # of a profile's file


def profile_path(flow: Path) -> Path:
    """Return the default path of a flow's profile."""
    return flow.with_name(f"{flow.stem}.profile.json")


def known_profile(learnt: Path | None, flow: Path) -> FlowProfile | None:
    """Return a flow's profile, or None without a file.

    Without `learnt`, the profile in the flow's folder is used.

    Raises:
        InvalidFile: The file is not a profile.
    """
    path = learnt or profile_path(flow)
    return None if learnt is None and not path.exists() else read_profile(path)


def read_profile(path: Path) -> FlowProfile:
    """Read a profile. Raises InvalidFile: The file is missing, or not a profile of this version."""
    try:
        with path.open("rb") as file:
            raw = file.read(_BYTES + 1)
        if len(raw) > _BYTES:
            raise InvalidFile(path, f"it exceeds {_BYTES >> 20} MiB, so it is not a profile")
        found = msgspec.json.decode(raw, type=FlowProfile)
    except OSError as error:
        raise InvalidFile(path, f"it cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidFile(path, f"it is not a flow's profile: {error}") from None
    if found.format != PROFILE_FORMAT:
        raise InvalidFile(
            path,
            f"it is of format {found.format}, not {PROFILE_FORMAT}: recreate it (kairos profile)",
        )
    return found


def write_profile(path: Path, profile: FlowProfile) -> None:
    """Write a profile. Raises SetupError: The file cannot be written."""
    with atomic_write(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(profile)) + b"\n")


def profile_lines(profile: FlowProfile) -> list[str]:
    """Return lines for a terminal."""
    lines = [f"flow {profile.flow}: learnt from {profile.rows} rows"]
    for name, each in profile.operators.items():
        said = [f"  {name}: for {each.rows.mean:.0%} of rows"]
        if each.times.mean > 1:
            said.append(f"{each.times.mean:.1f} times each")
        for what, tokens in (("prompts", each.prompt_tokens), ("answers", each.completion_tokens)):
            if tokens is not None:
                said.append(
                    f"{what} of {tokens.mean:,.0f} tokens ({tokens.low:,.0f} to {tokens.high:,.0f})"
                )
        if each.time_us is not None:
            low, high = each.time_us.low / SECOND, each.time_us.high / SECOND
            said.append(f"{each.time_us.mean / SECOND:.3g} s a call ({low:.3g} to {high:.3g})")
        lines.append(", ".join(said))
    for key, batch in profile.batches.items():
        alone_us, us = batch.latency_us.get(1), batch.latency_us[batch.efficient]
        said = [f"  {key.removesuffix(':')}: {batch.efficient} at a time, {us / SECOND:.3g} s"]
        if alone_us is not None and batch.efficient > 1:
            said.append(f"one alone {alone_us / SECOND:.3g} s")
        lines.append("; ".join(said))
    measured = [
        f"{name} {factor:.2f}"
        for name, factor in msgspec.structs.asdict(profile.cost).items()
        if factor is not None
    ]
    if measured:
        lines.append(f"  factors of a placement's cost: {', '.join(measured)}")
    return lines
