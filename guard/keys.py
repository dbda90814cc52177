"""The idempotency key of an intent, and the deployment secret that it is derived from.

A key is HMAC-SHA256(secret, intent id, generation), so it is known before the first attempt, is the same on every
attempt and on every machine that has the secret, and cannot be guessed from what the intent does. Nothing about it is
stored that could be lost: a new journal derives the old keys. So the secret must not change, and is never made anew
where one was given: another secret is another key, and another key is a second effect.
"""

from __future__ import annotations

import base64
import binascii
import builtins
import hmac
import os
import re
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, log2
from pathlib import Path
from typing import Literal

from .errors import JournalError

VARIABLE = "ONCEWARD_SECRET"
#: Below this many bits two intents could come to share a key by accident.
LEAST_BITS = 64
#: The HMAC is as wide as SHA-256, and so should the secret be (RFC 2104, section 3, read 2026-12-01).
LEAST_BYTES = 32
_USUAL_LENGTH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFormat:
    """What a key looks like. Raises ValueError where its keys could not tell intents apart."""

    kind: Literal["token", "uuid"] = "token"
    min: int = 1
    max: int = _USUAL_LENGTH
    alphabet: str = "0123456789abcdef"
    _blocks: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.kind == "token":
            if not 1 <= self.min <= self.max:
                raise ValueError(f"key lengths from {self.min} to {self.max}: no key has such a length")
            if len(set(self.alphabet)) < max(2, len(self.alphabet)):
                raise ValueError("a key's alphabet needs two characters or more, and each of them once")
            if self.bits < LEAST_BITS:
                raise ValueError(f"keys of {self.bits:.0f} bits cannot tell intents apart; {LEAST_BITS} are needed")
        # 64 bits more than the key holds, so that no key is likelier than another by more than 2^-64.
        object.__setattr__(self, "_blocks", ceil((self.bits + 64) / 256))

    @property
    def length(self) -> int:
        """The length of the keys: 32 for a token, or as near to it as the service allows."""
        return 36 if self.kind == "uuid" else max(self.min, min(self.max, _USUAL_LENGTH))

    @property
    def bits(self) -> float:
        """How much a key can tell apart."""
        return 122.0 if self.kind == "uuid" else self.length * log2(len(self.alphabet))


@dataclass(frozen=True, slots=True)
class Secret:
    """The deployment secret. Its text form does not show it."""

    bytes: builtins.bytes = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """What tells this secret from another and may be stored: it says nothing about the secret."""
        return hmac.digest(self.bytes, b"onceward/1/fingerprint", "sha256").hex()[:16]


def derive(secret: bytes, intent: str, generation: int, format: KeyFormat) -> str:
    """Return the key of an intent in one generation; always the same for the same four."""
    message = f"onceward/1/key:{intent}:{generation}".encode()
    digest = hmac.digest(secret, message, "sha256")
    if format.kind == "uuid":
        return _uuid(digest)
    for n in range(1, format._blocks):
        digest += hmac.digest(secret, b"%b:%d" % (message, n), "sha256")
    # A long division gives every character the same chance, whatever the alphabet's size; two at a time is faster.
    number, pairs, length = int.from_bytes(digest), _pairs(format.alphabet), format.length
    base = len(pairs)
    key = []
    for _ in range(0, length, 2):
        number, rest = divmod(number, base)
        key.append(pairs[rest])
    return "".join(key)[:length]


def load_secret(path: Path | None, environ: Mapping[str, str] = os.environ) -> Secret:
    """Return the deployment secret: of the environment, else of the file at `path`, made on first use.

    Safe between processes: all that start at once read the one secret. Raises JournalError, which never shows it.
    """
    given = environ.get(VARIABLE)
    if given is not None:
        return _decoded(given, f"the environment's {VARIABLE}")
    if path is None:
        raise JournalError("there is no deployment secret", remedy=f"set {VARIABLE} to 32 random bytes in hex")
    try:
        text = _read(path)
        if text is None:
            _create(path)
            text = _read(path)
    except OSError as error:
        problem = f"the secret {path} cannot be read or made: {error.strerror or error}"
        raise JournalError(problem, remedy=f"let this user write there, or set {VARIABLE}") from error
    if text is None:
        raise JournalError(f"the secret {path} is a link to nothing", remedy="remove the link, or restore its target")
    return _decoded(text, f"the secret {path}")


@lru_cache(maxsize=32)
def _pairs(alphabet: str) -> list[str]:
    return [low + high for high in alphabet for low in alphabet]


def _uuid(digest: bytes) -> str:
    # Version 4, as services that check a key's version ask for that one.
    number = int.from_bytes(digest[:16])
    number = number & ~(0xF << 76) | 4 << 76
    number = number & ~(0b11 << 62) | 0b10 << 62
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _read(path: Path) -> str | None:
    """Return the text of the file; None where there is none."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        # Judged by the open file, so that nobody changes it between the look and the read.
        mode = os.fstat(file).st_mode
        if not stat.S_ISREG(mode):
            raise JournalError(f"the secret {path} is not a file", remedy="move it away, or restore the file")
        if stat.S_IMODE(mode) & 0o077:
            problem = f"the secret {path} is open to others (mode {stat.S_IMODE(mode):04o})"
            raise JournalError(problem, remedy=f"run `chmod 600 {path}`, or set {VARIABLE} instead")
        return os.read(file, 65_536).decode("ascii", "replace")
    finally:
        os.close(file)


def _create(path: Path) -> None:
    """Make the file whole or not at all: no process ever reads half a secret, and the first one to come wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as stream:
            stream.write(secrets.token_hex(LEAST_BYTES).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    # A secret that is lost to a power cut after keys were derived from it would change those keys.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _decoded(text: str, where: str) -> Secret:
    text = "".join(text.split())
    remedy = f"give {LEAST_BYTES} random bytes or more as hex or base64, such as `openssl rand -hex {LEAST_BYTES}`"
    if re.fullmatch(r"[0-9a-fA-F]+", text):
        # Text of 64 hexadecimal digits is base64 too; nobody means that.
        found = bytes.fromhex(text) if len(text) % 2 == 0 else b""
    else:
        try:
            standard = text.rstrip("=").replace("-", "+").replace("_", "/")
            found = base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise JournalError(f"{where} is neither hex nor base64", remedy=remedy) from None
    if len(found) < LEAST_BYTES:
        raise JournalError(f"{where} is too short: {len(found)} bytes", remedy=remedy)
    return Secret(found)
