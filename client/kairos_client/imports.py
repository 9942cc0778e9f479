"""Run a hook on a module as soon as it is imported."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from kairos_client import trouble

Hook = Callable[[ModuleType], None]


class _Loader(Loader):
    """Loader of a module that then runs the hook."""

    def __init__(self, own: Loader, hook: Hook) -> None:
        self._own, self._hook = own, hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._own
        self._own.exec_module(module)
        _run(self._hook, module)


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.hooks: dict[str, Hook] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.hooks:
            return None
        hook = self.hooks.pop(name)  # from now on as if there were no hook
        for finder in sys.meta_path:
            found = None if finder is self else finder.find_spec(name, path, target)
            if found is not None:
                if found.loader is not None:
                    found.loader = _Loader(found.loader, hook)
                return found
        self.hooks[name] = hook
        return None


_finder = _Finder()


def when_imported(name: str, hook: Hook) -> None:
    """Run a hook when a module is imported; at once if it already is."""
    module = sys.modules.get(name)
    if module is not None:
        _run(hook, module)
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.hooks[name] = hook


def _run(hook: Hook, module: ModuleType) -> None:
    try:
        hook(module)
    except Exception as error:  # noqa: BLE001 - another version of it, perhaps
        trouble.met(f"watching {module.__name__}", error)
