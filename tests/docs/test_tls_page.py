"""The commands of docs/how-to/tls.md make files that Kairos and its clients can use."""

import contextlib
import re
import ssl
import subprocess
from pathlib import Path

import pytest

from kairos.settings import TlsFiles, client_context, server_context

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "tls.md"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A directory in which all of the page's commands of OpenSSL were run."""
    directory = tmp_path_factory.mktemp("tls")
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    script = "".join(block for block in blocks if block.startswith("openssl"))
    assert script.count("openssl") == 3
    subprocess.run(["bash", "-euc", script], cwd=directory, check=True, capture_output=True)
    return directory


def files(directory, name):
    return TlsFiles(*(str(directory / f) for f in (f"{name}.crt", f"{name}.key", "ca.crt")))


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_client_with_the_certificate_that_is_made_gets_in(made, name):
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context(files(made, "server")).wrap_bio(to_server, to_client, server_side=True)
    client = client_context(files(made, "operator")).wrap_bio(
        to_client, to_server, server_hostname=name
    )
    for _ in range(4):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    assert server.getpeercert()["subject"] == ((("commonName", "operator"),),)


def test_keys_are_private(made):
    for name in ("ca.key", "server.key"):
        assert (made / name).stat().st_mode & 0o077 == 0
