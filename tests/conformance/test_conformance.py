"""Kairos's server and client against h11, llhttp and nginx: each difference is decided."""

import asyncio
import itertools
import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conformance import messages, readers
from tests.conformance.gateway.server import kairos_server
from tests.conformance.nginx import Nginx
from tests.conformance.proxy.client import kairos_client
from tests.conformance.readers import REFUSED

PAGE = Path(__file__).parents[2] / "docs/decisions/http-differences.md"
GATE, ACCEPTANCE = 2_000, 100_000
KINDS = {"refuses", "takes", "reads differently"}
AT_ONCE = 500
SERVERS = {"h11": readers.h11_server, "llhttp": readers.llhttp_server}
CLIENTS = {"h11": readers.h11_client, "llhttp": readers.llhttp_client}


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


class Comparison:
    """Differences that no row explains, and how many each row does explain."""

    def __init__(self, known, proxy=None):
        self.found, self.used, self._known, self._proxy = [], Counter(), known, proxy

    def _compare(self, end, peer, case, ours, theirs):
        if (kind := difference(ours, theirs)) is None:
            return
        rows = {(end, peer, kind, way) for way in case.ways} & self._known
        self.used.update(rows)
        if not rows:
            self.found.append((end, peer, kind, case, ours, theirs))

    async def _compare_request(self, case):
        ours = await kairos_server(case)
        if self._proxy is not None:
            self._compare("server", "nginx", case, ours, await self._proxy.request(case))
            return
        for peer, reader in SERVERS.items():
            self._compare("server", peer, case, ours, reader(case))

    async def _compare_response(self, number, case):
        ours = await kairos_client(case)
        if self._proxy is not None:
            theirs = await self._proxy.response(number, case)
            self._compare("client", "nginx", case, ours, theirs)
            return
        for peer, reader in CLIENTS.items():
            # httptools does not say which request an answer is of.
            if peer != "llhttp" or case.method != b"HEAD":
                self._compare("client", peer, case, ours, reader(case))

    async def run(self, seed, count):
        requests, responses = messages.requests(seed, count), messages.responses(seed, count)
        if self._proxy is not None:  # it hands on bodies that are whole, of engines that ended them
            requests = (replace(each, early=False) for each in requests)
            responses = (replace(each, ends=True) for each in responses)
        asked = itertools.chain(
            map(self._compare_request, requests),
            itertools.starmap(self._compare_response, enumerate(responses)),
        )
        for together in iter(lambda: list(itertools.islice(asked, AT_ONCE)), []):
            await asyncio.gather(*together)


async def undecided(seed, count, known, proxy=None):
    comparison = Comparison(known, proxy)
    await comparison.run(seed, count)
    return comparison.found, comparison.used


async def test_each_difference_to_other_readers_is_decided():
    found, _ = await undecided(1, GATE, decided())
    assert found == []


async def test_each_difference_to_nginx_is_decided(tmp_path):
    async with Nginx(tmp_path) as proxy:
        found, _ = await undecided(1, GATE, decided(), proxy)
    assert found == []


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_each_difference_is_decided_in_many_more_cases_and_no_decision_is_idle(tmp_path):
    known = decided()
    seed = int.from_bytes(os.urandom(4))
    found, used = await undecided(seed, ACCEPTANCE, known)
    assert found == [], f"seed {seed}"
    async with Nginx(tmp_path) as proxy:
        found, of_proxy = await undecided(seed, ACCEPTANCE, known, proxy)
    assert found == [], f"seed {seed}"
    assert {row[3] for row in known} == {row[3] for row in used | of_proxy}


async def test_a_difference_that_is_not_decided_is_found():
    found, _ = await undecided(1, GATE, set())
    assert {kind for _, _, kind, *_ in found} == KINDS
