"""The files of a tenant, as they are listed."""

from contextlib import closing

import msgspec

from kairos.batches.records import FileRecord
from kairos.batches.store import KeptBatches
from kairos.settings import BatchSettings


def file(number, purpose):
    return FileRecord(
        id=f"file-{number}",
        tenant="acme",
        purpose=purpose,
        filename="a.jsonl",
        size_bytes=1,
        created_s=0,
        expires_s=100,
    )


def test_pages_of_files_of_a_purpose_are_as_long_as_they_are_asked_for(tmp_path):
    with closing(KeptBatches(BatchSettings(directory=str(tmp_path)))) as kept:
        for number, purpose in enumerate(["batch", "batch_output", "batch", "batch", "batch"]):
            kept.files.add(file(number, purpose))

        def found(purpose, most):
            listed = kept.files.files_of("acme", 0, None, most, purpose=purpose, latest_first=True)
            return [each.id for each in listed]

        assert found("batch_output", 2) == ["file-1"]
        assert found("batch", 4) == ["file-4", "file-3", "file-2", "file-0"]
        assert found(None, 2) == ["file-4", "file-3"]
        assert found("fine-tune", 2) == []


def test_a_file_that_is_sent_again_once_the_first_has_expired_is_another(tmp_path):
    with closing(KeptBatches(BatchSettings(directory=str(tmp_path)))) as kept:

        def sent(number, now_s):
            kept.files.path_of(f"file-{number}").write_bytes(b"x")
            times = {"created_s": now_s, "expires_s": now_s + 100}
            record = msgspec.structs.replace(file(number, "batch"), asked_as="key", **times)
            return kept.files.add(record).id

        assert [sent(1, 0), sent(2, 99), sent(3, 100), sent(4, 101)] == [
            "file-1", "file-1", "file-3", "file-3",
        ]  # fmt: skip
