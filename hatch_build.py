"""The build of Kairos compiles what of it is plain C, where it can; see
`scripts/compile_native.py`."""

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileNative(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        root = Path(self.root)
        script = runpy.run_path(str(root / "scripts" / "compile_native.py"))
        libraries = script["compile_native"](root)
        if not libraries:
            return
        build_data["artifacts"] += [str(each.relative_to(root)) for each in libraries]
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
