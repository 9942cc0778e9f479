"""Files of tenants: their records, and the places of their content."""

import filecmp
import sqlite3
from pathlib import Path

import msgspec

from kairos.batches.asked_again import KeyReused, made_before
from kairos.batches.database import OPEN, BatchDatabase
from kairos.batches.records import BatchLimit, FileInUse, FileRecord, NoSuchFile
from kairos.core import Unavailable
from kairos.settings import BatchSettings

_LEFT_S = 86_400  # age of leftovers of broken uploads that are removed

_INPUTS = f"SELECT input FROM batches WHERE {OPEN}"  # noqa: S608
_OPEN_IDS = f"SELECT id FROM batches WHERE {OPEN}"  # noqa: S608

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(FileRecord).decode


class FileStore:
    """Stored files. Every method waits for the disk."""

    def __init__(self, database: BatchDatabase, root: Path, limits: BatchSettings) -> None:
        self._database, self.root, self._limits = database, root, limits

    def path_of(self, file_id: str) -> Path:
        return self.root / file_id

    def room(self, tenant: str, asked_as: str | None = None) -> int:
        """Return the maximum size of another file. Raises BatchLimit: the tenant may not add any.

        A file stored by an earlier request with the same key needs no room.
        """
        with self._database.transaction() as db:
            if made_before(db, "files", tenant, asked_as) is not None:
                return self._limits.max_file_bytes
            return self._room(db, tenant)

    def add(self, record: FileRecord) -> FileRecord:
        """Store the record of a file whose content is at its path.

        Returns it, or the file that an earlier request with the same key made: then the new content
        is unused.

        Raises:
            BatchLimit.
            KeyReused: the earlier request had another file.
            Unavailable: that file is being deleted, or cannot be read.
        """
        with self._database.transaction() as db:
            found = made_before(db, "files", record.tenant, record.asked_as)
            made = None if found is None else _decode(found)
            if made is None or made.expires_s <= record.created_s:
                if record.size_bytes > self._room(db, record.tenant):
                    raise self._full()
                insert(db, record)
                return record
        if made.filename != record.filename or not self._are_alike(made.id, record.id):
            raise KeyReused(made.id)
        return made

    def _are_alike(self, one: str, other: str) -> bool:
        try:
            return filecmp.cmp(self.path_of(one), self.path_of(other), shallow=False)
        except OSError as error:
            raise Unavailable(f"{one} cannot be read: {error.strerror}") from None

    def find_file(self, tenant: str, file_id: str, now_s: int) -> FileRecord:
        """Return a file's record. Raises NoSuchFile."""
        found = self._database.all(
            "SELECT record FROM files WHERE id = ? AND tenant = ? AND expires > ?",
            *(file_id, tenant, now_s),
        )
        if not found:
            raise NoSuchFile(file_id)
        return _decode(found[0][0])

    def files_of(
        self,
        tenant: str,
        now_s: int,
        after: str | None,
        most: int,
        *,
        purpose: str | None,
        latest_first: bool,
    ) -> list[FileRecord]:
        """Return the tenant's files. Raises NoSuchFile: `after` does not exist.

        `purpose`: only of this purpose; None: of all.
        """
        page = self._database.page("files", tenant, after, latest_first=latest_first)
        if page is None:
            raise NoSuchFile(str(after))
        where, parameters = page
        order = "DESC" if latest_first else "ASC"
        found = self._database.all(
            f"SELECT record FROM files WHERE {where} AND expires > ? "  # noqa: S608
            "AND coalesce(json_extract(CAST(record AS TEXT), '$.purpose') = ?, 1) "
            f"ORDER BY seq {order} LIMIT ?",
            *(*parameters, now_s, purpose, most),
        )
        return [_decode(each) for (each,) in found]

    def delete(self, tenant: str, file_id: str, now_s: int) -> None:
        """Delete a file. Raises NoSuchFile, FileInUse."""
        self.find_file(tenant, file_id, now_s)
        with self._database.transaction() as db:
            using = db.execute(
                f"SELECT id FROM batches WHERE input = ? AND {OPEN}",  # noqa: S608
                (file_id,),
            ).fetchone()
            if using is not None:
                raise FileInUse(file_id, using[0])
            db.execute("DELETE FROM files WHERE id = ?", (file_id,))
        self.path_of(file_id).unlink(missing_ok=True)

    def remove_old(self, now_s: int) -> None:
        """Remove expired files and batches, and leftovers of broken uploads."""
        oldest_s = now_s - self._limits.keep_days * 86_400
        with self._database.transaction() as db:
            expired = db.execute(
                f"SELECT id FROM files WHERE expires <= ? AND id NOT IN ({_INPUTS})",  # noqa: S608
                (now_s,),
            ).fetchall()
            db.executemany("DELETE FROM files WHERE id = ?", expired)
            db.execute("DELETE FROM batches WHERE ended <= ?", (oldest_s,))
            db.execute(f"DELETE FROM results WHERE batch NOT IN ({_OPEN_IDS})")  # noqa: S608
        known = {name for (name,) in self._database.all("SELECT id FROM files")}
        for path in self.root.iterdir():
            if path.name not in known and path.stat().st_mtime < now_s - _LEFT_S:
                path.unlink(missing_ok=True)
        for (name,) in expired:
            self.path_of(name).unlink(missing_ok=True)

    def _full(self) -> BatchLimit:
        limits = self._limits
        return BatchLimit(
            f"a tenant may have {limits.max_files} files of {limits.max_bytes} bytes in total: "
            "delete some"
        )

    def _room(self, db: sqlite3.Connection, tenant: str) -> int:
        count, size = db.execute(
            "SELECT count(*), coalesce(sum(size), 0) FROM files WHERE tenant = ?", (tenant,)
        ).fetchone()
        room: int = self._limits.max_bytes - size
        if count >= self._limits.max_files or room <= 0:
            raise self._full()
        return min(room, self._limits.max_file_bytes)


def insert(db: sqlite3.Connection, record: FileRecord) -> None:
    db.execute(
        "INSERT INTO files (id, tenant, size, expires, record) VALUES (?, ?, ?, ?, ?)",
        (record.id, record.tenant, record.size_bytes, record.expires_s, _encode(record)),
    )


def is_there(db: sqlite3.Connection, tenant: str, file_id: str, now_s: int) -> bool:
    found = db.execute(
        "SELECT 1 FROM files WHERE id = ? AND tenant = ? AND expires > ?", (file_id, tenant, now_s)
    )
    return found.fetchone() is not None
