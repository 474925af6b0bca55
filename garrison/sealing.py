"""Seal values to an installation's public key, and open them where a node receives them.

A sealed text is `sealed:<key id>:<base64>`, a PyNaCl SealedBox (X25519, XSalsa20-Poly1305); the
public key travels as `garrison-x25519:<key id>:<base64>`. Only workers hold the private half.

What a value of an environment may be:

- `sealed:...` in exactly that form passes through `seal_env` unchanged. Any other text that
  begins with `sealed:` is somebody's own value, and is sealed like every text.
- `plain:TEXT` travels readable and reaches the node as TEXT.
- `secret:NAME` is resolved on the worker, from a file or from the environment.

No message here ever holds a value.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey, SealedBox

from garrison.errors import InvalidSpec, NotFound, Problem
from garrison.private_files import create_once, open_regular, replace

MAX_SECRET_BYTES = 1024 * 1024
SECRET_VARIABLE = "GARRISON_SECRET_"

_PUBLIC = re.compile(r"garrison-x25519:([0-9a-f]{16}):([A-Za-z0-9+/]{43}=)")
_PRIVATE = re.compile(r"garrison-x25519-private:([0-9a-f]{16}):([A-Za-z0-9+/]{43}=)")
# A box is 48 bytes longer than what it holds; `garrison.domain.secrets` has the same form.
_SEALED = re.compile(
    r"sealed:([0-9a-f]{16}):"
    r"((?:[A-Za-z0-9+/]{4}){16,}(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)"
)
_SECRET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_PLAIN_PREFIX = "plain:"
_SECRET_PREFIX = "secret:"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """The keys of one installation; `repr` shows the id only."""

    key_id: str
    private: PrivateKey = field(repr=False)

    @property
    def public_text(self) -> str:
        """The public half as clients get it."""
        return _public_text(self.private.public_key)


def load_or_create_key_pair(data_dir: Path) -> KeyPair:
    """Return the installation's keys, making them on first need.

    Safe between processes: all of them get the keys of whichever was first. The private half is
    `keys/sealing.key` (0600), the public half `keys/sealing.pub`.

    Raises:
        InvalidSpec: The stored key is damaged, or other users can read it.
    """
    folder = data_dir / "keys"
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "sealing.key"
    if not path.exists():
        create_once(path, _private_text(PrivateKey.generate()) + "\n")
    pair = load_key_pair(data_dir)
    public = folder / "sealing.pub"
    if read_public_key(data_dir) != pair.public_text:
        replace(public, pair.public_text + "\n", mode=0o644)
    return pair


def load_key_pair(data_dir: Path) -> KeyPair:
    """Return the installation's keys.

    Raises:
        NotFound: There are none.
        InvalidSpec: The stored key is damaged, or other users can read it.
    """
    path = data_dir / "keys" / "sealing.key"
    try:
        text = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise NotFound(f"there is no sealing key at {path}") from None
    except UnicodeDecodeError:
        text = ""
    if path.stat().st_mode & 0o077:
        raise InvalidSpec(f"{path} can be read by other users; run: chmod 600 {path}")
    match = _PRIVATE.fullmatch(text)
    if match is None:
        raise InvalidSpec(f"{path} is damaged: it holds no sealing key")
    private = PrivateKey(base64.b64decode(match[2]))
    if _key_id(private.public_key) != match[1]:
        raise InvalidSpec(f"{path} is damaged: the key does not fit its id {match[1]}")
    return KeyPair(match[1], private)


def read_public_key(data_dir: Path) -> str | None:
    """Return the public key that workers published in the data directory, None if none did."""
    try:
        return (data_dir / "keys" / "sealing.pub").read_text(encoding="ascii").strip() or None
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def seal(public_text: str, value: str) -> str:
    """Return a value sealed to a public key; only the holder of the private half can open it.

    Raises:
        InvalidSpec: The public key is not one.
    """
    key = _public_key(public_text)
    # surrogateescape: a variable of the caller's own environment need not be UTF-8.
    sealed = SealedBox(key).encrypt(value.encode("utf-8", "surrogateescape"))
    return f"sealed:{_key_id(key)}:{base64.b64encode(sealed).decode()}"


def is_sealed(value: str) -> bool:
    """Whether a value has exactly the form that `seal` gives."""
    return _SEALED.fullmatch(value) is not None


def seal_env(public_text: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment fit to travel: every value sealed that is not so or exempt already.

    Raises:
        InvalidSpec: The public key is not one, or a `secret:` name is not a plain name.
    """
    problems = [
        Problem(f"env.{name}", "names a secret that is not a plain file name")
        for name, value in env.items()
        if value.startswith(_SECRET_PREFIX) and _secret_name(value) is None
    ]
    if problems:
        raise InvalidSpec("the environment is not valid", problems=tuple(problems))
    return {
        name: value if _travels_as_is(value) else seal(public_text, value)
        for name, value in env.items()
    }


def open_sealed(keys: KeyPair, text: str) -> str:
    """Return the value in a sealed text.

    Raises:
        InvalidSpec: It is sealed to another key, damaged, or no sealed text.
    """
    match = _SEALED.fullmatch(text)
    if match is None:
        raise InvalidSpec("is not a sealed value")
    if match[1] != keys.key_id:
        raise InvalidSpec(
            f"is sealed to the key {match[1]}, not to {keys.key_id}, the key of this installation"
        )
    try:
        opened = SealedBox(keys.private).decrypt(base64.b64decode(match[2]))
    except CryptoError:
        raise InvalidSpec(f"is damaged: the key {keys.key_id} does not open it") from None
    return opened.decode("utf-8", "surrogateescape")


def open_env(
    keys: KeyPair,
    env: Mapping[str, str],
    secrets: Path,
    *,
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return an environment as the process on the node gets it.

    Args:
        keys: The installation's keys.
        env: Values as they travelled.
        secrets: Directory with a file per secret; the content without one final newline.
        environ: Where `GARRISON_SECRET_<NAME>` is looked up when there is no file; the worker's
            own environment by default.

    Raises:
        InvalidSpec: With every variable that cannot be opened, by name.
    """
    opened: dict[str, str] = {}
    problems: list[Problem] = []
    variables = os.environ if environ is None else environ
    for name, value in env.items():
        try:
            opened[name] = _open_value(keys, value, secrets, variables)
        except InvalidSpec as error:
            problems.append(Problem(f"env.{name}", str(error)))
    if problems:
        raise InvalidSpec("cannot be opened", problems=tuple(problems))
    return opened


def _open_value(keys: KeyPair, value: str, secrets: Path, variables: Mapping[str, str]) -> str:
    if value.startswith(_PLAIN_PREFIX):
        return value.removeprefix(_PLAIN_PREFIX)
    if value.startswith(_SECRET_PREFIX):
        return _resolve(_secret_name(value), secrets, variables)
    if is_sealed(value):
        return open_sealed(keys, value)
    raise InvalidSpec("is neither sealed nor marked `plain:` or `secret:`")


def _resolve(name: str | None, secrets: Path, variables: Mapping[str, str]) -> str:
    if name is None:
        raise InvalidSpec("names a secret that is not a plain file name")
    content = _secret_file(secrets / name)
    if content is None:
        content = variables.get(f"{SECRET_VARIABLE}{name}")
    if content is None:
        raise InvalidSpec(
            f"the worker has no secret {name}: neither a file {secrets / name} "
            f"nor {SECRET_VARIABLE}{name}"
        )
    if "\0" in content:
        raise InvalidSpec(f"the secret {name} has a NUL character, which no process can receive")
    return content


def _secret_file(path: Path) -> str | None:
    try:
        with open_regular(path) as file:
            data = file.read(MAX_SECRET_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InvalidSpec(f"the secret file {path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_SECRET_BYTES:
        raise InvalidSpec(f"the secret file {path} is larger than {MAX_SECRET_BYTES} bytes")
    return data.decode("utf-8", "surrogateescape").removesuffix("\n")


def _secret_name(value: str) -> str | None:
    name = value.removeprefix(_SECRET_PREFIX)
    return name if _SECRET_NAME.fullmatch(name) else None


def _travels_as_is(value: str) -> bool:
    return value.startswith((_PLAIN_PREFIX, _SECRET_PREFIX)) or is_sealed(value)


def _public_key(text: str) -> PublicKey:
    match = _PUBLIC.fullmatch(text.strip())
    if match is None:
        raise InvalidSpec("the public key is not of the form garrison-x25519:<key id>:<base64>")
    key = PublicKey(base64.b64decode(match[2]))
    if _key_id(key) != match[1]:
        raise InvalidSpec(f"the public key does not fit its id {match[1]}")
    return key


def _key_id(key: PublicKey) -> str:
    return hashlib.sha256(bytes(key)).hexdigest()[:16]


def _public_text(key: PublicKey) -> str:
    return f"garrison-x25519:{_key_id(key)}:{base64.b64encode(bytes(key)).decode()}"


def _private_text(key: PrivateKey) -> str:
    encoded = base64.b64encode(bytes(key)).decode()
    return f"garrison-x25519-private:{_key_id(key.public_key)}:{encoded}"
