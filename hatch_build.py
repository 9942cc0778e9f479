"""The build of Kairos compiles what of it is plain C, where it can (`scripts/compile_native.py`).
It takes the compiled brain where `make compile` has made it."""

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
        folder = root / "kairos" / "compiled"
        is_new = runpy.run_path(str(root / "kairos" / "host" / "compiled_brain.py"))["files"](
            folder
        )
        brain = [each for each in folder.rglob("*") if each.is_file()] if is_new else []
        if not libraries and not brain:
            return
        build_data["artifacts"] += [str(each.relative_to(root)) for each in (*libraries, *brain)]
        build_data["pure_python"] = False
        if brain:  # of this version of Python
            build_data["infer_tag"] = True
        else:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"
