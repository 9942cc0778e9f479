"""Authorities and certificates for tests, made here, and good for nothing else."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kairos.settings import TlsFiles

DAY = timedelta(days=1)
HERE = ("localhost", "127.0.0.1")
PEM = serialization.Encoding.PEM


class Authority:
    """Signs certificates; its own is in the file `ca`."""

    def __init__(self, directory, name="authority"):
        self.directory, self._issued = Path(directory), 0
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        self._certificate = (
            _begun(self._name, self._name, self._key, datetime.now(UTC) - DAY, 10 * DAY)
            .add_extension(constraints, critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = str(self.directory / f"{name}.pem")
        Path(self.ca).write_bytes(self._certificate.public_bytes(PEM))

    def issue(self, name="server", names=HERE, *, begins=None, days=5, passphrase=None):
        """Writes `name`.crt and `name`.key, in place of those that were there."""
        key = ec.generate_private_key(ec.SECP256R1())
        begins = begins or datetime.now(UTC) - DAY
        certificate = (
            _begun(_named(name), self._name, key, begins, days * DAY)
            .add_extension(x509.SubjectAlternativeName(map(_alternative, names)), critical=False)
            .add_extension(_usage(signs=False), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        how = (
            serialization.BestAvailableEncryption(passphrase)
            if passphrase
            else serialization.NoEncryption()
        )
        files = TlsFiles(*(str(self.directory / f"{name}.{end}") for end in ("crt", "key")))
        Path(files.certificate).write_bytes(certificate.public_bytes(PEM))
        Path(files.key).write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, how))
        return files


def _named(name):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(name):
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _begun(subject, issuer, key, begins, lasts):
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + lasts)
    )


def _usage(*, signs):
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
