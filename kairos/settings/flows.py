"""Settings of flows that clients store and invoke over HTTP."""

import msgspec

PASS_NAMES = (
    "identities", "prune", "dependencies", "cse", "stages", "prefill", "cached", "order",
    "decoding", "touch",
)  # fmt: skip
MOST_FLOW_BYTES = 1 << 20  # that a flow's text may have at all


class FlowSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Flows over HTTP, `/v1/flows` and the models `flow/NAME`. Limits apply to each tenant."""

    directory: str  # for flows' texts; on a local disk, for one host only
    # A .py file with the Functions that flows may call, which is run as Kairos starts. Flows that
    # come over HTTP carry no code.
    functions: str | None = None
    # Items that embedders, rerankers, collections and batched functions take at a time, by what
    # `kairos profile` calls them ("embed:minilm"). Others have the usual batches.
    batches: dict[str, int] = {}
    # Passes that plans are made without, as `kairos run --without` names them.
    without: tuple[str, ...] = ()
    # Model of operators that name none. Without it, the only served model, or the engine's own.
    model: str | None = None
    max_flows: int = 200  # stored at once
    max_flow_bytes: int = 256 << 10  # of a flow's text
    max_running: int = 256  # concurrent invocations of one process
    # Seconds for which a result of a deterministic operator is given to other invocations of its
    # tenant, in one process. They share a call that is under way, too. 0: each makes all its calls.
    share_s: float = 300.0

    def __post_init__(self) -> None:
        for name in ("max_flows", "max_flow_bytes", "max_running"):
            if getattr(self, name) < 1:
                raise ValueError(f"flows.{name} must be at least 1")
        if not 0 <= self.share_s <= 86_400:
            raise ValueError("flows.share_s must be from 0 to 86400")
        if self.max_flow_bytes > MOST_FLOW_BYTES:
            raise ValueError(f"flows.max_flow_bytes must be at most {MOST_FLOW_BYTES}")
        if unknown := [name for name in self.without if name not in PASS_NAMES]:
            raise ValueError(f"flows.without: {unknown[0]} is not one of {', '.join(PASS_NAMES)}")
        if not all(1 <= items <= 2_048 for items in self.batches.values()):
            raise ValueError("flows.batches must be from 1 to 2048")
        if not self.directory:
            raise ValueError("flows.directory is empty: name a directory")
