"""TLS certificates, keys and authorities, as settings name them: files in PEM.

TLS 1.2 is the minimum. Renegotiation is disabled, since a peer could request it without end.
"""

import ssl
import stat
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from kairos.core import InvalidFile, SetupError

MAX_FILE_BYTES = 4 << 20  # a bundle of all public authorities has 0.2 MiB
# What each file is called in messages, by the field of `TlsFiles`.
OF_A_PORT = {"certificate": "tls_certificate", "key": "tls_key", "ca": "tls_client_ca"}


class TlsFiles(msgspec.Struct, frozen=True):
    """TLS files of one side of connections.

    `ca` has the authorities that must have signed the other side's certificate. None: a server
    requires no client certificate, a client trusts the system's authorities.
    """

    certificate: str | None = None  # followed by intermediate certificates
    key: str | None = None  # of the certificate; without a passphrase
    ca: str | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(Path(each) for each in (self.certificate, self.key, self.ca) if each)


def check_pair(files: TlsFiles, names: Mapping[str, str], of: str = "") -> None:
    """Check that certificate and key are given together. `of` is a prefix of the message.

    Raises SetupError: One of them is missing.
    """
    for given, other in (("certificate", "key"), ("key", "certificate")):
        if getattr(files, given) and not getattr(files, other):
            raise SetupError(f"{of}{names[given]} needs {names[other]}: name both files")


def check_port_files(files: TlsFiles, operators_ca: str | None) -> None:
    """Check the files of a service's ports.

    Raises SetupError: A file cannot be used; the message says which, and what to do.
    """
    check_pair(files, OF_A_PORT)
    if files.certificate is None:
        for name, path in (("tls_client_ca", files.ca), ("admin_tls_client_ca", operators_ca)):
            if path is not None:
                raise SetupError(f"{name} needs tls_certificate and tls_key: there is no TLS yet")
        return
    server_context(files)
    if operators_ca is not None:
        server_context(TlsFiles(files.certificate, files.key, operators_ca))


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the TLS context for incoming connections.

    Raises SetupError: A file cannot be used; the message says which, and what to do.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    _load_certificate(context, files)
    if files.ca is not None:
        _load_authorities(context, files.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the TLS context for outgoing connections; the server's certificate is always checked.

    Raises SetupError: As in `server_context`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which checks both
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    if files.ca is None:
        context.load_default_certs()
    else:
        _load_authorities(context, files.ca)
    if files.certificate is not None:
        _load_certificate(context, files)
    return context


def certificate_concern(files: TlsFiles) -> str | None:
    """Return a warning about a certificate that has expired or is not valid yet, or None."""
    if files.certificate is None:
        return None
    from cryptography import x509

    now = datetime.now(UTC)
    certificate = x509.load_pem_x509_certificate(_read(files.certificate))
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now >= ends:
        return f"{files.certificate}: the certificate expired on {ends:%Y-%m-%d %H:%M} UTC"
    if now < begins:
        return f"{files.certificate}: the certificate is valid from {begins:%Y-%m-%d %H:%M} UTC on"
    return None


def _load_certificate(context: ssl.SSLContext, files: TlsFiles) -> None:
    assert files.certificate is not None
    assert files.key is not None
    _check_certificate(files.certificate)
    _read(files.key)

    def no_passphrase() -> str:
        raise InvalidFile(
            files.key, f"the key has a passphrase: 'openssl pkey -in {files.key}' takes it off"
        )

    try:
        context.load_cert_chain(files.certificate, files.key, no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = f"the key is not that of the certificate in {files.certificate}"
        else:
            problem = "there is no private key in it (PEM: -----BEGIN PRIVATE KEY-----)"
        raise InvalidFile(files.key, problem) from None
    except OSError as error:
        raise InvalidFile(files.key, f"cannot be read: {error.strerror}") from None


def _check_certificate(path: str) -> None:
    from cryptography import x509

    try:
        x509.load_pem_x509_certificates(_read(path))
    except ValueError:
        form = "PEM: -----BEGIN CERTIFICATE-----"
        raise InvalidFile(path, f"there is no certificate in it ({form})") from None


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    _check_certificate(path)
    try:
        context.load_verify_locations(path)
    except OSError as error:  # ssl.SSLError among them
        raise InvalidFile(path, f"holds no authorities: {error}") from None


def _read(path: str) -> bytes:
    try:
        told = Path(path).stat()
        if not stat.S_ISREG(told.st_mode):
            raise InvalidFile(path, "this is not a regular file")
        if told.st_size > MAX_FILE_BYTES:
            raise InvalidFile(path, f"exceeds {MAX_FILE_BYTES} bytes: name a file in PEM")
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidFile(path, f"cannot be read: {error.strerror}") from None
