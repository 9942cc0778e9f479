"""Settings of batches: their directory, and the limits of each tenant."""

import msgspec

MAX_BATCH_BYTES = 200 << 20
MAX_BATCH_LINES = 50_000
_MOST_DAYS = 3_650


class BatchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's files and batches, `/v1/files` and `/v1/batches`. Limits apply to each tenant."""

    directory: str  # for files and what was answered; of one host, its own disk
    max_file_bytes: int = MAX_BATCH_BYTES  # the largest file
    max_lines: int = MAX_BATCH_LINES  # calls of a batch
    max_files: int = 1_000  # that are kept at once
    max_bytes: int = 10 << 30  # of all files that are kept
    max_open: int = 50  # batches that have not ended
    keep_days: int = 30  # then files, and batches that have ended, are deleted

    def __post_init__(self) -> None:
        for name in self.__struct_fields__[1:]:
            if getattr(self, name) < 1:
                raise ValueError(f"batches.{name} must be at least 1")
        if not self.directory:
            raise ValueError("batches.directory is empty: name a directory")
        if self.keep_days > _MOST_DAYS:
            raise ValueError(f"batches.keep_days must be at most {_MOST_DAYS}")
