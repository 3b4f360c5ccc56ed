"""Make a node's key pair: NAME is the private key, NAME.pub the public one.

    python -m deploy.node_key FOLDER/hospital-a

The same as ``ssh-keygen -t ecdsa -b 384 -N "" -f FOLDER/hospital-a``, where there is no ssh-keygen.
The private key stays on the node; the public one goes to whoever registers it with the SuperLink.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deploy.certificates import write_private

__all__ = ["make_node_key"]


def make_node_key(path: Path) -> Path:
    """Write a key pair unless it is there; the answer is the public key's file."""
    public = path.with_name(f"{path.name}.pub")
    if path.exists() and public.exists():
        return public
    path.parent.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    write_private(path, private)
    written = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    public.write_bytes(written + f" {path.name}\n".encode())
    return public


def main(arguments: Sequence[str] | None = None) -> None:
    """Make one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path, metavar="FOLDER/NAME")
    print(make_node_key(parser.parse_args(arguments).path))


if __name__ == "__main__":
    main()
