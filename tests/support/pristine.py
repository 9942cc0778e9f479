"""The state of an object and of all that it owns, to be compared with that of a new one.

Followed are attributes, containers, bound methods and what closures hold, as far as the product's
own objects go; of anything else only the type counts.
"""

import enum
import types
from collections import deque

import msgspec
import numpy as np

_VALUES = (int, float, str, bytes, bool, type(None), enum.Enum)
_OURS = ("kairos",)
_NOTHING = object()


def state_of(root, *, ignoring=(), sizes_only=False, within=_OURS):
    """Return what is found, by path. `ignoring`: `Class.attribute` of what may differ.
    `sizes_only`: of containers by how much they hold, with any keys. `within`: packages
    whose objects are followed."""
    return dict(_Walk(frozenset(ignoring), sizes_only, within).found(root))


def differences(before, after):
    """Return how two states differ, a line for each path."""
    return [
        f"{path}: {before.get(path, 'nothing')!r} -> {after.get(path, 'nothing')!r}"
        for path in sorted(before.keys() | after.keys())
        if before.get(path, _NOTHING) != after.get(path, _NOTHING)
    ]


class _Walk:
    def __init__(self, ignoring, sizes_only, within):
        self._ignoring, self._sizes_only, self._within = ignoring, sizes_only, within
        self._seen = {}  # by id: the objects, so that no id is given twice

    def found(self, root):
        waiting = deque([("", root)])
        while waiting:
            path, value = waiting.popleft()
            if isinstance(value, _VALUES):
                yield path, value
                continue
            if id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            yield path, self._summary(value)
            waiting.extend((f"{path}{name}", each) for name, each in self._parts(value))

    def _summary(self, value):
        if isinstance(value, np.ndarray):
            return ("array", *value.shape)
        if isinstance(value, set | frozenset):
            return "set", len(value) if self._sizes_only else tuple(sorted(map(repr, value)))
        if isinstance(value, dict | list | tuple | deque):
            return type(value).__name__, len(value)
        return type(value).__qualname__

    def _parts(self, value):
        if isinstance(value, dict):
            if self._sizes_only:  # the keys are names of calls
                return [("[]", each) for each in value.values()] if len(value) < 9 else []
            return [(f"[{key!r}]", each) for key, each in value.items()]
        if isinstance(value, list | tuple | deque):
            return [(f"[{number}]", each) for number, each in enumerate(value)]
        if isinstance(value, types.MethodType):
            return [("()", value.__self__)]
        if isinstance(value, types.FunctionType):
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            return [(f"({name})", cell.cell_contents) for name, cell in cells]
        kind = type(value)
        if not str(kind.__module__).startswith(self._within) or isinstance(
            value, type | types.ModuleType
        ):
            return []
        return [
            (f".{name}", getattr(value, name))
            for name in _attributes(value)
            if f"{kind.__name__}.{name}" not in self._ignoring and hasattr(value, name)
        ]


def _attributes(value):
    names = dict.fromkeys(getattr(value, "__dict__", ()))
    if isinstance(value, msgspec.Struct):
        names |= dict.fromkeys(value.__struct_fields__)
    for each in type(value).__mro__:
        names |= dict.fromkeys(each.__dict__.get("__mypyc_attrs__", ()))  # of compiled code
        slots = each.__dict__.get("__slots__", ())
        names |= dict.fromkeys((slots,) if isinstance(slots, str) else slots)
    return [name for name in names if not name.startswith("__")]
