"""The Python that runs Kairos: without optimizations a call takes a quarter more time."""

import platform
import sys
import sysconfig

_OF_SYSTEM = "/usr"  # distributions optimize theirs, and do not always say so


def describe_interpreter() -> str:
    """Return its version, and how it was built."""
    arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
    return f"Python {platform.python_version()}, {built(sys.base_prefix, arguments)}"


def built(prefix: str, arguments: str) -> str:
    """Return how Python was built, by its prefix and the `arguments` of `configure`."""
    if prefix == _OF_SYSTEM:
        return "the system's"
    return "optimized" if "--enable-optimizations" in arguments else "built without optimizations"
