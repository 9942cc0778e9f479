"""What the fuzzer once found worth keeping is answered as it should be, without the fuzzer."""

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("name", TARGETS)
def test_every_parser_keeps_its_word_on_all_that_was_found(name):
    inputs = sorted((CORPUS / name).iterdir())
    assert len(inputs) > 10
    for path in inputs:
        try:
            TARGETS[name](path.read_bytes())
        except Exception as error:
            error.add_note(f"input: {path}")
            raise


def test_the_corpus_is_that_of_the_targets_and_small():
    assert {each.name for each in CORPUS.iterdir()} == TARGETS.keys()
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 200_000
