"""Options of a demo. Light to import: its defaults are the command line's."""

from pathlib import Path

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a demo; the command line documents each."""

    apps: tuple[str, ...] = ("qa", "rg", "cg")
    workflows: int = 36
    rate_per_s: float = 1.0
    arrivals: str = "azure-conv"
    seed: int = 1
    inputs: tuple[str, ...] = ()
    time_limit_s: float = 150.0
    record: Path | None = None
