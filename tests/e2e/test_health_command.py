"""`kairos health` and `kairos explain` against a running Kairos, with and without TLS."""

import socket

import pytest

from tests.support.certificates import Authority
from tests.support.host import forked


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


async def run(*arguments, **given):
    """Exit status, and what it said."""
    status, printed, said = await forked.outcome(*arguments, **given)
    return status, (printed + said).strip()


async def test_one_that_is_well_is_told_by_the_exit_status(kairos, standin):
    served = await kairos(standin.url)
    assert await run("health", served.url, fresh=True) == (0, f"{served.url} is well")
    admin = f"{served.service.admin_url}/admin/status"
    assert await run("health", admin) == (0, f"{admin} is well")


async def test_one_that_cannot_serve_is_not_well(kairos, unused_port):
    served = await kairos(f"http://127.0.0.1:{unused_port}", joins=0)
    status, said = await run("health", served.url)
    assert status == 1
    assert f"{served.url}: /health answered 503" in said


async def test_who_does_not_answer_in_time_is_not_well(unused_port):
    status, said = await run("health", f"http://127.0.0.1:{unused_port}")
    assert (status, "refused" in said) == (1, True)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        status, said = await run("health", f"http://127.0.0.1:{port}", "--timeout", "0.3")
        assert (status, "timed out" in said) == (1, True)


async def test_over_tls_the_authority_is_named_by_an_option_or_the_environment(
    kairos, standin, authority
):
    files = authority.issue()
    served = await kairos(standin.url, tls_certificate=files.certificate, tls_key=files.key)
    status, said = await run("health", served.url)
    assert (status, "its certificate is not accepted: " in said) == (1, True)
    assert (await run("health", served.url, "--tls-ca", authority.ca))[0] == 0
    for variable in ("KAIROS_SERVICE_CA", "SSL_CERT_FILE"):
        assert (await run("health", served.url, **{variable: authority.ca}))[0] == 0


async def test_a_certificate_is_shown_to_who_asks_for_one(kairos, standin, authority):
    files, own = authority.issue(), authority.issue("operator")
    served = await kairos(
        standin.url,
        tls_certificate=files.certificate,
        tls_key=files.key,
        tls_client_ca=authority.ca,
    )
    url = f"{served.service.admin_url}/admin/status"
    shown = ["--tls-ca", authority.ca, "--tls-certificate", own.certificate, "--tls-key", own.key]
    assert (await run("health", url, "--tls-ca", authority.ca))[0] == 1
    assert (await run("health", url, *shown))[0] == 0
    status, said = await run("explain", "none", "--url", served.url, *shown)
    assert status == 1
    assert f"{served.url}: GET /v1/workflows/none" in said
    assert "was answered 404" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["http://a:1", "--tls-ca", "ca.pem"], "http://a:1 has no TLS"),
        (["https://a:1", "--tls-key", "k.pem"], "--tls-key needs --tls-certificate"),
        (["https://a:1", "--tls-ca", "none.pem"], "none.pem: cannot be read"),
        (["a:1"], "'a:1' is not a URL like"),
        (["http://user:secret@a:1"], "is not a URL like"),
    ],
)
async def test_what_makes_no_sense_is_told(arguments, says):
    status, said = await run("health", *arguments)
    assert (status, says in said) == (1, True), said
