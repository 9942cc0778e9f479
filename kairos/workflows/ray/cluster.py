"""The Ray cluster that a run is on: one of this machine's own, or one that is there."""

import importlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kairos.core import SetupError

LOCAL = "local-ray"
_ADDRESS = re.compile(r"ray://[\w.\[\]:-]{1,255}:\d{1,5}", re.ASCII)
_STORE_BYTES = 200 << 20  # of Ray's own objects, of which a run has few
NAMESPACE = "kairos"


def check_address(on: str) -> None:
    """Check the address of a Ray cluster. Raises SetupError: it is malformed."""
    if on != LOCAL and not _ADDRESS.fullmatch(on):
        raise SetupError(
            f"--on {on[:100]}: write {LOCAL} for a Ray of this machine's own, or ray://HEAD:PORT "
            "of a cluster (by default port 10001 of its head)"
        )


def ray_module() -> Any:
    """Import Ray. Raises SetupError: it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise SetupError(f"--on needs Ray: pip install 'ray[client]' ({error})") from error


@contextmanager
def cluster(on: str, partitions: int | None) -> Iterator[tuple[Any, int]]:
    """Yield Ray and a number of partitions that it has CPUs for.

    A Ray that this process is connected to stays so.

    Raises:
        SetupError: it cannot be reached, or has too few CPUs.
    """
    ray = ray_module()
    is_ours = not ray.is_initialized()
    try:
        if is_ours and on == LOCAL:
            ray.init(
                address="local",
                num_cpus=max(os.cpu_count() or 1, partitions or 1),
                object_store_memory=_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                namespace=NAMESPACE,
            )
        elif is_ours:
            ray.init(address=on, namespace=NAMESPACE, log_to_driver=False)
    except Exception as error:
        said = str(error).strip().split("\n", 1)[0]
        raise SetupError(f"{on} cannot be used: {type(error).__name__}: {said}") from error
    try:
        cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        if partitions is not None and partitions > cpus:
            raise SetupError(f"--partitions {partitions}: the cluster has {cpus} CPUs")
        yield ray, partitions or cpus
    finally:
        if is_ours:
            ray.shutdown()
