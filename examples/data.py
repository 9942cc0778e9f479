"""Makes the tables that the flows of this folder run over, from real data sets.

    python examples/data.py --out DIRECTORY [--from DIRECTORY] [--rows N]

Reports and questions about them are those of TAT-QA, questions those of GSM8K, MMLU and TruthfulQA.
They are fetched from where they are published, or taken `--from` a directory.
"""

import argparse
import csv
import io
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from kairos.simulate import fetch_data_set

Row = dict[str, Any]


def reports(source: Path | None) -> Iterator[Row]:
    """A report with its paragraphs, its text, and its questions."""
    for number, each in enumerate(msgspec.json.decode(_content("tatqa_dataset_dev", source))):
        paragraphs = [paragraph["text"] for paragraph in each["paragraphs"]]
        yield {
            "report": number,
            "paragraphs": paragraphs,
            "text": "\n".join(paragraphs),
            "questions": [
                {"question": asked["question"], "answer": _text(asked["answer"])}
                for asked in each["questions"]
                if asked["answer_from"] == "text"
            ],
        }


def report_questions(source: Path | None) -> Iterator[Row]:
    """A row for each question; those of a report share its text."""
    for each in reports(source):
        for asked in each["questions"]:
            yield {"report": each["report"], "text": each["text"], **asked}


def questions(source: Path | None) -> Iterator[Row]:
    """Of mathematics and history in turn."""
    decode_lines = msgspec.json.Decoder(Row).decode_lines
    sums = decode_lines(_content("gsm8k_test", source))
    history = csv.reader(io.StringIO(_content("mmlu_history", source).decode("gbk")))
    for asked, row in zip(sums, history, strict=False):
        yield {"question": asked["question"]}
        yield {"question": row[0]}


def misconceptions(source: Path | None) -> Iterator[Row]:
    for row in csv.DictReader(io.StringIO(_content("TruthfulQA", source).decode())):
        yield {"question": row["prompt"].split("\n")[0]}


TABLES = {
    "reports.jsonl": reports,
    "report_questions.jsonl": report_questions,
    "questions.jsonl": questions,
    "misconceptions.jsonl": misconceptions,
}


def write(directory: Path, source: Path | None, rows: int) -> None:
    """All tables, of so many rows each.

    Raises:
        SetupError: a data set cannot be had.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name, made in TABLES.items():
        (directory / name).write_bytes(_lines(islice(made(source), rows)))


def _lines(rows: Iterable[Row]) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def _content(name: str, source: Path | None) -> bytes:
    return fetch_data_set(name, source).read_bytes()


def _text(answer: object) -> str:
    return ", ".join(map(str, answer)) if isinstance(answer, list) else str(answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--rows", type=int, default=1000)
    options = parser.parse_args()
    write(options.out, options.source, options.rows)


if __name__ == "__main__":
    main()
