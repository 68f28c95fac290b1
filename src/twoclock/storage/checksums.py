"""Digests: what is read back is what was written, or it is called damaged.

A JSON document is sealed: its last entry is the SHA-256 of the rest. The ``spec.json`` of a folder is such a document
and also the folder's manifest, with the size and SHA-256 of each file. So a bit that flipped and a file that was cut
short, lost or edited are noticed; someone who writes new digests as well is not.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from twoclock.protocols import InputError

SPEC = "spec.json"
_SEAL = "sha256"


class Damaged(InputError):
    """What lies on disk is not what was written."""


class Unsealed(Damaged):
    """A document without a digest, such as earlier versions wrote."""

    def __init__(self, what: str = "it") -> None:
        super().__init__(f"{what} was written by another version of twoclock, in its format")


def digest(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def seal(content: dict[str, Any]) -> str:
    """The JSON document of some content, with the digest of it as its last entry.

    >>> unseal(seal({"steps": 10}).encode())
    {'steps': 10}
    """
    return json.dumps({**content, _SEAL: _digest_of(content)}, indent=1) + "\n"


def unseal(document: bytes) -> dict[str, Any]:
    """The content of a sealed document; every byte of it counts."""
    try:
        content = json.loads(document)
    except (ValueError, RecursionError):
        raise Damaged("it cannot be read") from None
    if not isinstance(content, dict) or _SEAL not in content:
        raise Unsealed
    if content.pop(_SEAL) != _digest_of(content) or seal(content).encode() != document:
        raise Damaged("its digest does not fit, it is not what was written")
    return content


def write_spec(folder: Path, content: dict[str, Any]) -> None:
    """The last file of a folder: what it is, and the digests of all the others."""
    files = {path.name: digest(path.read_bytes()) for path in sorted(folder.iterdir())}
    (folder / SPEC).write_text(seal({**content, "files": files}))


def read_spec(folder: Path) -> dict[str, Any]:
    """What a folder says of itself, with the digests of its files as ``files``."""
    try:
        content = unseal((folder / SPEC).read_bytes())
    except FileNotFoundError:
        raise Damaged(f"{SPEC} is missing") from None
    except OSError as error:
        raise Damaged(f"{SPEC} cannot be read: {error.strerror}") from None
    except Unsealed:
        raise
    except Damaged as error:
        raise Damaged(f"{SPEC}: {error}") from None
    if not isinstance(content.get("files"), dict):
        raise Damaged(f"{SPEC} names no files")
    return content


def verified(path: Path, expected: dict[str, Any]) -> bytes:
    """The bytes of a file, if they are those that were written."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise Damaged(f"{path.name} is missing") from None
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {error.strerror}") from None
    if len(content) != expected["bytes"]:
        raise Damaged(f"{path.name} has {len(content):,} bytes where {expected['bytes']:,} were written")
    if digest(content) != expected:
        raise Damaged(f"{path.name} is not what was written, its SHA-256 differs")
    return content


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What a folder says of itself, and the bytes of its files, each verified."""
    spec = read_spec(folder)
    return spec, {name: verified(folder / name, expected) for name, expected in spec.pop("files").items()}


def _digest_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
