"""Certificates for tests of TLS, made by trustme: PEM files in a directory, as an operator gives them."""

import datetime
from pathlib import Path
from typing import NamedTuple

import trustme


class Files(NamedTuple):
    """One certificate's files."""

    cert: Path
    key: Path


def write(authority: trustme.CA, directory: Path, name: str, *, valid_days: int = 30) -> Files:
    """A certificate for `name`, in files of that name; of the past for negative days."""
    now = datetime.datetime.now(datetime.UTC)
    edge = now + datetime.timedelta(days=valid_days)
    issued = authority.issue_cert(name, not_before=min(now, edge) - datetime.timedelta(days=1), not_after=edge)
    return place(issued, directory / f"{name}.crt", directory / f"{name}.key")


def place(issued: trustme.LeafCert, cert: Path, key: Path) -> Files:
    """Put a certificate and its key where a service or a client looks for them."""
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return Files(cert, key)


def write_ca(authority: trustme.CA, path: Path) -> Path:
    """The authority's own certificate: what is trusted."""
    path.write_bytes(authority.cert_pem.bytes())
    return path
