"""Make the certificates of a federation: an authority of its own, and the server's certificate.

    python -m deploy.certificates FOLDER --host fl.example.org --host 10.0.0.5

Nodes get ``ca.pem`` and nothing else. ``ca.key`` signs: keep it off the server. A file that is
there is kept: delete ``server.pem`` and ``server.key`` to renew them.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["make_certificates", "write_private"]

_DAYS = 365


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Write ``ca.pem``, ``ca.key``, ``server.pem`` and ``server.key``, where they are missing.

    Parameters
    ----------
    folder
        Where to.
    hosts
        Names and addresses under which nodes reach the server: they refuse any other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority, key = _authority(folder)
    if (folder / "server.pem").exists() and (folder / "server.key").exists():
        return
    own = ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _signed_by(authority.subject, own.public_key(), hosts[0])
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
            critical=False,
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
        .sign(key, hashes.SHA384())
    )
    _write_pair(folder, "server", certificate, own)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    public, private = folder / "ca.pem", folder / "ca.key"
    if public.exists() and private.exists():
        key = serialization.load_pem_private_key(private.read_bytes(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise SystemExit(f"error: {private} is no key of an elliptic curve")
        return x509.load_pem_x509_certificate(public.read_bytes()), key
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "federation authority")])
    certificate = (
        _signed_by(name, key.public_key(), "federation authority")
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_may_sign(), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    _write_pair(folder, "ca", certificate, key)
    return certificate, key


def _signed_by(
    issuer: x509.Name, key: ec.EllipticCurvePublicKey, name: str
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + timedelta(days=_DAYS))
    )


def _may_sign() -> x509.KeyUsage:
    """An authority signs certificates, and does nothing else."""
    return x509.KeyUsage(
        key_cert_sign=True,
        crl_sign=True,
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_pair(
    folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(folder / f"{name}.key", private)
    (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def main(arguments: Sequence[str] | None = None) -> None:
    """Make them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--host", action="append", metavar="NAME", help="how nodes reach the server; repeatable"
    )
    chosen = parser.parse_args(arguments)
    make_certificates(chosen.folder, chosen.host or ["127.0.0.1", "localhost"])
    for name in ("ca.pem", "ca.key", "server.pem", "server.key"):
        print(chosen.folder / name)


if __name__ == "__main__":
    main()
