"""Kairos's server and client against h11 and llhttp: each difference in reading is decided."""

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.conformance import messages, readers
from tests.conformance.readers import REFUSED

PAGE = Path(__file__).parents[2] / "docs/decisions/http-differences.md"
GATE, ACCEPTANCE = 2_000, 100_000
KINDS = {"refuses", "takes", "reads differently"}
SERVERS = {"h11": readers.h11_server, "llhttp": readers.llhttp_server}


def decided():
    """Return what the page decides: end, other reader, kind and way."""
    found = set()
    for line in PAGE.read_text().splitlines():
        row = re.fullmatch(r"\| (.+?) \| ((?:server|client) .+?) \| (.+?) \| .+ \|", line)
        if row is not None:
            way, pairs, kinds = row.groups()
            assert {*kinds.split(", ")} <= KINDS, line
            assert way in messages.OF_REQUESTS or way in messages.OF_RESPONSES, line
            for pair in pairs.split(", "):
                found |= {(*pair.split(" "), kind, way) for kind in kinds.split(", ")}
    return found


def difference(ours, theirs):
    """Return how ours differs; None: it does not, or both refuse."""
    if ours == theirs or (ours[1] == theirs[1] == REFUSED):
        return None
    if ours[1] == REFUSED:
        return "refuses"
    return "takes" if theirs[1] == REFUSED else "reads differently"


async def undecided(seed, count, known):
    """Return the differences that no row explains, and count what rows do explain."""
    found, used = [], Counter()

    def compare(end, peer, case, ours, theirs):
        if (kind := difference(ours, theirs)) is None:
            return
        rows = {(end, peer, kind, way) for way in case.ways} & known
        used.update(rows)
        if not rows:
            found.append((end, peer, kind, case, ours, theirs))

    for case in messages.requests(seed, count):
        ours = await readers.kairos_server(case)
        for peer, reader in SERVERS.items():
            compare("server", peer, case, ours, reader(case))
    for case in messages.responses(seed, count):
        compare("client", "h11", case, await readers.kairos_client(case), readers.h11_client(case))
    return found, used


async def test_each_difference_to_other_readers_is_decided():
    found, _ = await undecided(1, GATE, decided())
    assert found == []


@pytest.mark.long
async def test_each_difference_is_decided_in_many_more_cases_and_no_decision_is_idle():
    known = decided()
    seed = int.from_bytes(os.urandom(4))
    found, used = await undecided(seed, ACCEPTANCE, known)
    assert found == [], f"seed {seed}"
    assert {row[3] for row in known} == {row[3] for row in used}


async def test_a_difference_that_is_not_decided_is_found():
    found, _ = await undecided(1, GATE, set())
    assert {kind for _, _, kind, *_ in found} == KINDS
