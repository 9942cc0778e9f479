"""Digests of functions: an edited function has another digest.

A digest covers the function's code as Python compiles it, so that comments and blanks make no
difference, and the definitions it refers to within its module: functions, classes and constants,
and their own references in turn. Modules in the folder of the module, or below, are followed as
well; changes of others need a new `version`. The digest is of the running code, even if the file
was edited after it was loaded, or was never in a file, as in a notebook. None of the user's code is
called for it.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from hashlib import blake2b
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePath
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any
from uuid import UUID

_BYTES = 8
_EXACT = (float, complex, bool, type(None), type(Ellipsis))
_WRITTEN = (date, datetime, time, timedelta, Decimal, Fraction, UUID, range, slice)
_MOST_DEEP = 40  # values within each other
_MOST_VALUES = 100_000  # of the constants of a function together
_MOST_BYTES = 16_000_000  # of them
_MOST_WRAPPED = 100  # functions that wrap each other
_OF_A_MODULE = frozenset(("__file__", "__spec__", "__loader__", "__cached__", "__path__"))
_NOT_OF_A_CLASS = frozenset(
    (
        *("__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "_abc_impl"),
        *("__abstractmethods__", "__annotate__", "__annotate_func__"),
        *("__firstlineno__", "__static_attributes__"),
    )
)


def digest_of(function: Callable[..., object]) -> str:
    """Return a digest of a function's code, and of the definitions in its module that it refers to.

    Constants are followed up to a limit of depth, number and size; beyond that only the name
    counts.
    """
    return _Walk(function).digest()


class _Walk:
    """Walk through the code and data that a function refers to: each function and class once."""

    def __init__(self, function: object) -> None:
        self._root, self._homes = function, _homes(function)
        self._folders = tuple(filter(None, map(_folder, self._homes.values())))
        self._digest = blake2b(digest_size=_BYTES)
        self._pending: deque[FunctionType | type] = deque()
        self._numbers: dict[int, int] = {}  # of functions and classes, by id
        self._alive: list[object] = []  # numbered objects, so that no other object gets the same id
        self._values, self._size = _MOST_VALUES, _MOST_BYTES

    def digest(self) -> str:
        self._write(self._text(self._root, 0))
        while self._pending:
            each = self._pending.popleft()
            of = self._of_class(each) if isinstance(each, type) else self._of_function(each)
            for part in of:
                self._write(part)
        return self._digest.hexdigest()

    def _write(self, part: str) -> None:
        self._digest.update(part.encode(errors="surrogatepass") + b"\0")

    def _of_function(self, function: FunctionType) -> Iterator[str]:
        code, known = function.__code__, function.__globals__
        yield self._text(code, 0)
        yield self._text(function.__defaults__, 0)
        yield self._text(function.__kwdefaults__, 0)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            yield f"{name} {self._text(cell, 0)}"
        if self._is_home(known):
            yield from self._members(known, set(_names(code)), 0)
        elif "__wrapped__" in vars(function):  # this is elsewhere, and what it wraps is here
            yield self._text(vars(function)["__wrapped__"], 0)

    def _members(self, known: Mapping[str, Any], named: set[str], depth: int) -> Iterator[str]:
        """Yield the values that a module, and followed modules it has, hold under these names."""
        for name in sorted(named & known.keys() - _OF_A_MODULE):
            value = known[name]
            yield f"{name} {self._text(value, 0)}"
            if type(value) is ModuleType and self._is_home(vars(value)) and depth < _MOST_DEEP:
                yield from self._members(vars(value), named, depth + 1)

    def _is_home(self, known: dict[str, object] | None) -> bool:
        """Return whether globals belong to a module that is followed."""
        if known is None:
            return False
        if id(known) not in self._homes and _folder(known).startswith(self._folders or (" ",)):
            self._homes[id(known)] = {} if _is_library(known) else known
        return bool(self._homes.get(id(known)))

    def _of_class(self, each: type) -> Iterator[str]:
        with suppress(Exception):  # there is no source, or the class forbids to look
            yield ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(each))))
        yield self._text(type.__dict__["__bases__"].__get__(each), 0)
        for name, member in sorted(type.__dict__["__dict__"].__get__(each).items()):
            if name not in _NOT_OF_A_CLASS:
                yield f"{name} {self._text(member, 0)}"

    def _text(self, value: Any, depth: int) -> str:
        """Return data as text, other values by name; code of the module is added later."""
        self._values -= 1
        kind = type(value)
        if kind in _EXACT:
            return repr(value)
        try:
            if issubclass(kind, type) or kind is FunctionType:
                return self._of_code(value)
            if depth > _MOST_DEEP or self._values < 0:
                return _named(value)
            return f"{_named(value)} {self._inside(value, kind, depth + 1)}"
        except Exception:  # noqa: BLE001 - a class of the user's may forbid anything
            return f"something that cannot be read, {depth}"

    def _of_code(self, value: FunctionType | type) -> str:
        """Return a name; for code of the module a number, under which the code follows once."""
        if not self._is_followed(value):
            return _named(value)
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._numbers)
            self._pending.append(value)
            self._alive.append(value)
        return f"code {self._numbers[id(value)]}"

    def _is_followed(self, value: FunctionType | type) -> bool:
        if value is self._root:
            return True
        if type(value) is FunctionType:
            return self._is_home(value.__globals__) or "__wrapped__" in vars(value)
        return self._is_home(_globals_of(value))

    def _inside(self, value: Any, kind: type, depth: int) -> str:
        """Return a value's parts as text; nothing if it is not known to be data."""
        if kind is CodeType:
            return self._compiled(value, depth)
        for plain, written in _PLAIN:
            if issubclass(kind, plain):
                return self._plain(value, written)
        for many in _MANY:
            if issubclass(kind, many):
                return self._contained(value, many, depth)
        if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
            return self._array(value)
        if issubclass(kind, Enum):
            return str(vars(value).get("_name_"))
        if issubclass(kind, PurePath) and kind.__module__ in _OF_PATHS:
            return self._placed(str(value))
        if kind in _WRITTEN:
            return repr(value)
        held = self._held(value, kind)
        return "" if held is None else self._text(held, depth)

    def _contained(self, value: Any, kind: Any, depth: int) -> str:
        """Return the items of a collection up to the limit, and their number.

        The methods of the base class are used, since a user's class may override them with
        anything.
        """
        size = kind.__len__(value)
        is_unordered = kind in (set, frozenset)
        if is_unordered and size > self._values:  # which come first differs from process to process
            return str(size)
        texts = []
        for each in kind.items(value) if kind in _PAIRED else kind.__iter__(value):
            if self._values < 0:
                break
            texts.append(self._text(each, depth))
        return f"{size}:{','.join(sorted(texts) if is_unordered else texts)}"

    def _held(self, value: Any, kind: type) -> object | None:
        """Return the parts of an object of a known kind, or of a class of the module."""
        for known, names in _PARTS:
            if issubclass(kind, known):
                with suppress(ValueError):  # nothing was put into the cell yet
                    return [getattr(value, name) for name in names]
                return None
        if self._is_home(_globals_of(kind)):
            return [kind, _attributes(value, kind)]
        return _inner(value) or None

    def _compiled(self, code: CodeType, depth: int) -> str:
        """Return a code's text without line numbers, so that moved code stays the same."""
        numbers = (code.co_flags, code.co_argcount, code.co_posonlyargcount)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_kwonlyargcount)
        constants = ",".join(self._text(each, depth) for each in code.co_consts)
        table = getattr(code, "co_exceptiontable", b"")
        return f"{code.co_name}{numbers}{names}{code.co_code!r}{table!r}({constants})"

    def _plain(self, value: object, written: Callable[[object], str]) -> str:
        said = written(value)
        self._size -= len(said)
        if self._size < 0:
            return str(len(said))
        return self._placed(said) if isinstance(value, str) else said

    def _placed(self, text: str) -> str:
        """Return a path relative to the module's folder, so that it is the same on another host."""
        for folder in self._folders:
            if text.startswith(folder):
                return f"here/{text[len(folder) :]}"
            if folder.startswith(f"{text}/") and text:
                return f"above here by {folder.count('/') - text.count('/') - 1}"
        return text

    def _array(self, value: Any) -> str:
        self._size -= value.nbytes
        if self._size < 0 or value.dtype.hasobject:
            return f"{value.shape}{value.dtype}"
        return f"{value.shape}{value.dtype}{blake2b(value.tobytes(), digest_size=16).hexdigest()}"


_PLAIN: tuple[tuple[type, Callable[..., str]], ...] = (
    (str, str.__str__),
    (bytes, bytes.__repr__),
    (bytearray, bytearray.__repr__),
    (int, hex),  # a decimal has a limit of digits
    (float, float.__repr__),
)
_PAIRED = (dict, MappingProxyType)
_MANY = (*_PAIRED, list, tuple, deque, set, frozenset)
_PARTS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (CellType, ("cell_contents",)),
    (MethodType, ("__func__", "__self__")),
    (partial, ("func", "args", "keywords")),
    (property, ("fget", "fset", "fdel")),
    (staticmethod, ("__func__",)),
    (classmethod, ("__func__",)),
    (re.Pattern, ("pattern", "flags")),
)
_INSTALLED = {"site-packages", "dist-packages"}
_INNER = ("__wrapped__", "func", "afunc")
_OF_PATHS = ("pathlib", "pathlib._local")


def _homes(function: Any) -> dict[int, dict[str, object]]:
    """Return globals of modules, by id: of a function, and of functions within it.

    Libraries count only if there is nothing else.
    """
    found: list[dict[str, object]] = []
    pending: list[Any] = [function]
    seen = set[int]()
    while pending and len(seen) < _MOST_WRAPPED:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        kind = type(each)
        if kind is FunctionType:
            found.append(each.__globals__)
            pending += _cells(each)
            pending.append(vars(each).get("__wrapped__"))
        elif issubclass(kind, type):
            found.append(_globals_of(each) or {})
        elif issubclass(kind, MethodType):
            pending += (each.__func__, each.__self__)
        elif issubclass(kind, partial):
            pending.append(each.func)
        elif each is not None:
            pending += (kind, *_inner(each))
    own = [each for each in found if not _is_library(each)]
    return {id(each): each for each in own or found[:1]}


def _is_library(known: Mapping[str, object]) -> bool:
    name, file = known.get("__name__"), known.get("__file__")
    root = name.partition(".")[0] if type(name) is str else ""
    is_installed = type(file) is str and bool(_INSTALLED & set(PurePath(file).parts))
    is_ours = root == "kairos" or (root in sys.stdlib_module_names and root != "__main__")
    return is_installed or is_ours


def _folder(known: Mapping[str, object]) -> str:
    """Return the folder of a module's file, with a slash at its end; empty: it has no file."""
    file, spec = known.get("__file__"), known.get("__spec__")
    if file is None and type(spec) is ModuleSpec:  # of a package without a file
        places = spec.submodule_search_locations
        return f"{next(iter(places))}/" if places else ""
    return f"{Path(file).absolute().parent}/" if type(file) is str else ""


def _globals_of(kind: type) -> dict[str, object] | None:
    """Return the globals of a class's module; None if that is not loaded."""
    name = type.__dict__["__dict__"].__get__(kind).get("__module__")
    module = sys.modules.get(name) if type(name) is str else None
    return vars(module) if type(module) is ModuleType else None


def _inner(value: object) -> list[object]:
    """Return functions inside a wrapper of functools or LangChain."""
    found = (inspect.getattr_static(value, name, None) for name in _INNER)
    return [each for each in found if type(each) is FunctionType]


def _cells(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # nothing was put in yet
            yield cell.cell_contents


def _attributes(value: object, kind: type) -> dict[str, object]:
    """Return the attributes of an object, in its dict and its slots, without calling properties."""
    with suppress(AttributeError, TypeError):
        held = dict(object.__getattribute__(value, "__dict__"))
        return dict(sorted((str(name), each) for name, each in held.items()))
    found = {}
    for base in kind.__mro__:
        for name, member in type.__dict__["__dict__"].__get__(base).items():
            if type(member) is MemberDescriptorType:
                with suppress(AttributeError):
                    found[name] = member.__get__(value)
    return dict(sorted(found.items()))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _named(value: object) -> str:
    """Return the name of a function, class or module; of anything else, the name of its class."""
    kind: Any = type(value)
    if kind is ModuleType:
        return f"module {vars(value).get('__name__')}"
    if kind in (FunctionType, BuiltinFunctionType) or issubclass(kind, type):
        kind = value
    return f"{kind.__module__}.{kind.__qualname__}"
