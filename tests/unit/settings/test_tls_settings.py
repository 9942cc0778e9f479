"""Files of TLS: what can be wrong with them is said, with what to do."""

import re
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kairos.core import SetupError
from kairos.settings import TlsFiles, certificate_concern, client_context, config, server_context
from tests.support.certificates import Authority


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def with_ca(files, ca):
    return TlsFiles(files.certificate, files.key, ca)


def test_old_versions_and_renegotiation_are_off_on_both_sides(authority):
    files = authority.issue()
    for context in (server_context(files), client_context(with_ca(files, authority.ca))):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert context.options & ssl.OP_NO_RENEGOTIATION


def test_a_server_asks_for_certificates_where_it_has_an_authority(authority):
    files = authority.issue()
    assert server_context(files).verify_mode is ssl.CERT_NONE
    assert server_context(with_ca(files, authority.ca)).verify_mode is ssl.CERT_REQUIRED


def test_a_client_always_checks_certificate_and_name(authority):
    for files in (TlsFiles(), TlsFiles(ca=authority.ca), with_ca(authority.issue(), authority.ca)):
        context = client_context(files)
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    alone = client_context(TlsFiles(ca=authority.ca)).get_ca_certs()
    assert len(alone) == 1  # no authority of the system beside the one that is named


def test_what_is_wrong_with_a_file_is_said(authority, tmp_path):
    files, other = authority.issue(), authority.issue("other")
    closed = authority.issue("closed", passphrase=b"secret")
    empty = tmp_path / "empty"
    empty.touch()
    large = tmp_path / "large"
    large.write_bytes(b" " * ((4 << 20) + 1))
    for wrong, says in {
        TlsFiles(files.certificate, other.key): "other.key: the key is not that of the certificate",
        TlsFiles("none.crt", files.key): "none.crt: cannot be read: No such file or directory",
        TlsFiles(files.certificate, "none.key"): "none.key: cannot be read: No such file",
        TlsFiles(files.key, files.key): "server.key: there is no certificate in it",
        TlsFiles(files.certificate, files.certificate): "server.crt: there is no private key in it",
        TlsFiles(closed.certificate, closed.key): "closed.key: the key has a passphrase",
        with_ca(files, str(empty)): "empty: there is no certificate in it",
        with_ca(files, str(tmp_path)): "this is not a regular file",
        with_ca(files, str(large)): "exceeds 4194304 bytes",
    }.items():
        for make in (server_context, client_context):
            with pytest.raises(SetupError, match=re.escape(says)):
                make(wrong)


def test_a_key_that_nobody_may_read_is_told(authority, monkeypatch):
    files = authority.issue()

    def refuse(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)  # tests may run as root, who may read all
    with pytest.raises(SetupError, match=r"server.crt: cannot be read: Permission denied"):
        server_context(files)


def test_a_certificate_out_of_its_time_can_be_used_and_is_told(authority):
    now = datetime.now(UTC)
    files = authority.issue("old", begins=now - timedelta(days=9), days=5)
    assert "old.crt: the certificate expired on" in certificate_concern(files)
    server_context(files)
    files = authority.issue("young", begins=now + timedelta(days=1))
    assert "young.crt: the certificate is valid from" in certificate_concern(files)
    assert certificate_concern(authority.issue()) is None
    assert certificate_concern(TlsFiles(ca=authority.ca)) is None


def load(**given):
    return config.load_settings(None, {}, given)


def test_settings_name_a_pair_and_authorities_need_it(authority):
    files = authority.issue()
    for given, says in (
        ({"tls_certificate": files.certificate}, "tls_certificate needs tls_key: name both files"),
        ({"tls_key": files.key}, "tls_key needs tls_certificate: name both files"),
        ({"tls_client_ca": authority.ca}, "tls_client_ca needs tls_certificate and tls_key"),
        ({"admin_tls_client_ca": authority.ca}, "admin_tls_client_ca needs tls_certificate"),
    ):
        with pytest.raises(SetupError, match=says):
            load(**given)


@pytest.mark.parametrize("name", ["tls_client_ca", "admin_tls_client_ca"])
def test_settings_with_files_of_no_use_are_refused(authority, name):
    files = authority.issue()
    pair = {"tls_certificate": files.certificate, "tls_key": files.key}
    assert load(**pair, **{name: authority.ca}).tls_key == files.key
    with pytest.raises(SetupError, match=r"server\.key: there is no certificate in it"):
        load(**pair, **{name: files.key})


def test_the_environment_names_them_too(authority):
    files = authority.issue()
    environ = {"KAIROS_TLS_CERTIFICATE": files.certificate, "KAIROS_TLS_KEY": files.key}
    assert config.load_settings(None, environ, {}).tls_certificate == files.certificate
