"""Which Python runs Kairos: one without optimizations takes a quarter more for a call. Ours."""

import platform
import sys
import sysconfig

_OF_SYSTEM = "/usr"  # distributions optimize theirs, and do not always say so


def interpreter() -> str:
    """Its version, and how it was built."""
    arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
    return f"Python {platform.python_version()}, {built(sys.base_prefix, arguments)}"


def built(prefix: str, arguments: str) -> str:
    """`arguments`: of `configure`."""
    if prefix == _OF_SYSTEM:
        return "the system's"
    return "optimized" if "--enable-optimizations" in arguments else "built without optimizations"
