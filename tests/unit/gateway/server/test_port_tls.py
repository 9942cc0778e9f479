"""TLS of ports: which files are whose, and what the log says of handshakes."""

import logging
import ssl

import pytest

from kairos.gateway import ServiceTls
from kairos.gateway.server.http import PortTls
from kairos.settings import Settings
from tests.support.certificates import Authority


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def settings_of(files, **given):
    return Settings(tls_certificate=files.certificate, tls_key=files.key, **given)


def asks_for_certificates(port):
    return port.context().verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("named", "asks"),
    [
        ((), (False, False)),
        (("tls_client_ca",), (True, True)),
        (("admin_tls_client_ca",), (False, True)),
    ],
)
def test_who_must_show_a_certificate(authority, named, asks):
    tls = ServiceTls(settings_of(authority.issue(), **dict.fromkeys(named, authority.ca)))
    assert tls.is_on
    assert (asks_for_certificates(tls.callers), asks_for_certificates(tls.operators)) == asks


def test_operators_may_have_an_authority_of_their_own(authority, tmp_path):
    other = Authority(tmp_path, "other")
    tls = ServiceTls(
        settings_of(authority.issue(), tls_client_ca=authority.ca, admin_tls_client_ca=other.ca)
    )
    names = [port.context().get_ca_certs()[0]["subject"] for port in (tls.callers, tls.operators)]
    assert [each[0][0][1] for each in names] == ["authority", "other"]


def test_without_a_certificate_there_is_no_tls():
    tls = ServiceTls(Settings())
    assert (tls.is_on, tls.callers, tls.operators, tls.changes()) == (False, None, None, {})
    tls.change_files(Settings())


def test_settings_that_are_read_again_change_both_ports(authority):
    files = authority.issue()
    tls = ServiceTls(settings_of(files))
    changed = settings_of(files, tls_client_ca=authority.ca)
    for change in tls.changes().values():
        change(changed)
    assert asks_for_certificates(tls.callers)
    assert asks_for_certificates(tls.operators)


def test_settings_without_tls_leave_it_on_and_the_log_says_so(authority, caplog):
    tls = ServiceTls(settings_of(authority.issue()))
    before = tls.callers.context()
    tls.change_files(Settings())
    assert tls.callers.context() is before
    assert "the callers' port keeps TLS until the next restart" in caplog.text


def test_the_log_tells_of_failed_handshakes_once_a_minute(authority, caplog):
    caplog.set_level(logging.WARNING)
    now_s = 0.0
    port = PortTls("the callers' port", authority.issue(), lambda: now_s)
    for now_s in (0.0, 1.0, 2.0, 59.0, 60.0, 61.0):
        port.count_failure("why", f"at {now_s}")
    assert [record.getMessage() for record in caplog.records] == [
        "TLS: a handshake failed at the callers' port; the last, of a client at 0.0: why",
        "TLS: 4 handshakes failed at the callers' port; the last, of a client at 60.0: why",
    ]
