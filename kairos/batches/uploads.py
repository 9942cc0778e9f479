"""Uploads of files, written to disk piece by piece."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
from starlette.requests import Request

from kairos.batches.records import MAX_KEPT_S, MIN_KEPT_S, BatchLimit, FileTooLarge
from kairos.core import BodyTooSlow, InvalidRequest, Unavailable
from kairos.request import FormReader, NoForm, PartBegan, PartContent, PartEnded, boundary_of

PIECE_S = 60.0  # longest silence of an upload
AT_ONCE = 4  # uploads of a tenant, in a process
_FIELD_BYTES = 1_024
_WRITE_BYTES = 1 << 20
_FILENAME = 255  # characters


class Uploaded(msgspec.Struct, frozen=True):
    purpose: str
    filename: str
    size_bytes: int
    kept_s: int | None  # None: the default


class UploadsUnderWay:
    """Number of running uploads by tenant."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}

    @contextmanager
    def one_of(self, tenant: str) -> Iterator[None]:
        """Count an upload. Raises BatchLimit."""
        if self._of.get(tenant, 0) >= AT_ONCE:
            raise BatchLimit(f"{AT_ONCE} files are being uploaded already: wait for one of them")
        self._of[tenant] = self._of.get(tenant, 0) + 1
        try:
            yield
        finally:
            left = self._of.pop(tenant) - 1
            if left:
                self._of[tenant] = left


class _Form:
    def __init__(self, file: BinaryIO, limit_bytes: int) -> None:
        self._file, self._limit_bytes = file, limit_bytes
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.size_bytes = 0
        self._name: str | None = None  # of the plain field being read
        self._value = b""
        self._pending = bytearray()

    def on_part(self, event: PartBegan | PartContent | PartEnded) -> None:
        match event:
            case PartBegan(name, filename):
                self._name, self._value = (name if filename is None else None), b""
                if filename is not None:
                    if self.filename is not None or name != "file":
                        raise NoForm("it has other files than one whose name is 'file'")
                    self.filename = filename
            case PartContent(data):
                if self._name is None:
                    self.size_bytes += len(data)
                    if self.size_bytes > self._limit_bytes:
                        raise FileTooLarge(self._limit_bytes)
                    self._pending += data
                else:
                    self._value += data
                    if len(self._value) > _FIELD_BYTES:
                        raise NoForm(f"a field has over {_FIELD_BYTES} bytes")
            case PartEnded():
                if self._name is not None:
                    self.fields[self._name] = self._value.decode("utf-8", "replace")

    async def write(self, *, all_of_it: bool = False) -> None:
        """Write the received content, once it is large enough for a thread."""
        if len(self._pending) >= _WRITE_BYTES or (all_of_it and self._pending):
            pending, self._pending = self._pending, bytearray()
            await asyncio.to_thread(self._file.write, pending)


async def upload(request: Request, path: Path, limit_bytes: int) -> Uploaded:
    """Write the file of a form to a new path. On any error the path is removed.

    Raises:
        NoForm, FileTooLarge, InvalidRequest, BodyTooSlow.
        Unavailable: the disk is full, or failed.
        ClientDisconnect: the client has left.
    """
    reader = FormReader(boundary_of(request.headers.get("content-type", "")))
    try:
        with _new(path) as file:
            form = _Form(file, limit_bytes)
            async for piece in _pieces(request):
                for event in reader.feed(piece):
                    form.on_part(event)
                await form.write()
            told = _told(form, is_whole=reader.is_whole)
            await form.write(all_of_it=True)
            await asyncio.to_thread(_sync, file)
    except OSError as error:
        _remove(path)
        raise Unavailable(f"the file cannot be stored: {error.strerror}") from error
    except BaseException:
        _remove(path)
        raise
    return told


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(PIECE_S):
                piece = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise BodyTooSlow(PIECE_S) from None
        yield piece


def _new(path: Path) -> BinaryIO:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")  # noqa: PTH123


def _told(form: _Form, *, is_whole: bool) -> Uploaded:
    """Return the upload's parameters. Raises NoForm, InvalidRequest."""
    if not is_whole or form.filename is None:
        raise NoForm("it breaks off" if form.filename is not None else "it has none")
    purpose = form.fields.get("purpose")
    if purpose != "batch":
        raise InvalidRequest("purpose must be 'batch': other files are not accepted")
    name = "".join(each for each in form.filename or "" if each.isprintable())
    anchor, seconds = (form.fields.get(f"expires_after[{of}]") for of in ("anchor", "seconds"))
    kept_s = kept_for(anchor, seconds)
    return Uploaded(purpose, name[:_FILENAME] or "file", form.size_bytes, kept_s)


def kept_for(anchor: object, seconds: object) -> int | None:
    """Return the seconds of `expires_after`; None: it is not set.

    Raises:
        InvalidRequest: it is not valid.
    """
    if anchor is None and seconds is None:
        return None
    if isinstance(seconds, str) and seconds.isascii() and seconds.isdigit() and len(seconds) < 10:
        seconds = int(seconds)
    if anchor != "created_at" or not (
        isinstance(seconds, int) and MIN_KEPT_S <= seconds <= MAX_KEPT_S
    ):
        raise InvalidRequest(
            "expires_after has the anchor 'created_at', and seconds from "
            f"{MIN_KEPT_S} to {MAX_KEPT_S}"
        )
    return seconds


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
