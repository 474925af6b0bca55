"""A cluster described by flags, a file, or both: flags win over the file."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from garrison.cli.flags import Reader, parameters, sign
from garrison.errors import Faulty, InvalidSpec, Problem
from garrison.models.cluster import ClusterSpec
from garrison.models.cluster_file import read_cluster_lines
from garrison.models.document import MAX_BYTES
from garrison.models.offer import CapacityType
from garrison.models.problems import KeyPath, build, line_of
from garrison.private_files import open_regular

_KEY_TEXT = re.compile(r"^(ssh-|ecdsa-|sk-)\S* ")
MAX_KEY_BYTES = 16_384

File = Annotated[
    str | None,
    typer.Option("--file", "-f", metavar="FILE", help="A `cluster:` file; - reads standard input."),
]


class Wish:
    """What the person asks for, and what to tell about it.

    Attributes:
        spec: None when neither a file nor a flag says anything.
        notes: Where a flag differs from the file.
    """

    def __init__(
        self,
        spec: ClusterSpec | None,
        notes: Sequence[str] = (),
        *,
        file: str | None = None,
        lines: Mapping[KeyPath, int] | None = None,
        flags: Collection[str] = (),
    ) -> None:
        """Keep what was read.

        Args:
            spec: None when nothing was said.
            notes: For the person.
            file: Its name as given.
            lines: Of the file's keys.
            flags: Fields that flags decide, whatever the file says.
        """
        self.spec = spec
        self.notes = tuple(notes)
        self._file = file
        self._lines = lines or {}
        self._flags = frozenset(flags)

    @contextlib.contextmanager
    def located(self) -> Iterator[None]:
        """Give the mistakes that the body is told of their lines in the file."""
        try:
            yield
        except Faulty as error:
            if self._file is None or not error.problems:
                raise
            problems = tuple(map(self._on_line, error.problems))
            head = str(error).partition("\n")[0]
            located = type(error)(head, problems=problems, source=self._file)
        else:
            return
        raise located

    def _on_line(self, problem: Problem) -> Problem:
        path = tuple(problem.field.split("."))
        if not self._flags.isdisjoint(path[1:2]):
            return problem
        return replace(problem, line=line_of(path, self._lines))


def _shape_flags(
    name: Annotated[
        str | None, typer.Option(help="The cluster's name; without one, one is made.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="Number of identical machines.")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(help="Accelerators in each; 0 is a CPU machine.")
    ] = None,
    accelerator: Annotated[str | None, typer.Option(help="H100, H100:8, NVIDIA-A10G.")] = None,
    instance_type: Annotated[str | None, typer.Option(help="The provider's own name.")] = None,
    provider: Annotated[str | None, typer.Option(help="As `provider list` names it.")] = None,
    region: Annotated[str | None, typer.Option()] = None,
    zone: Annotated[str | None, typer.Option()] = None,
    capacity_type: Annotated[CapacityType | None, typer.Option()] = None,
    root_disk_gb: Annotated[int | None, typer.Option(help="Size of each node's disk.")] = None,
    recovery: Annotated[
        bool | None, typer.Option(help="Bring lost nodes back without being asked.")
    ] = None,
    failover: Annotated[
        bool | None, typer.Option(help="Try other places when one has no capacity.")
    ] = None,
) -> dict[str, Any]:
    """Return what was given of the priced part."""
    given = {name: value for name, value in locals().items() if value is not None}
    if recovery is not None:
        given["recovery"] = {"automatic": recovery}
    return given


def _workload_flags(
    command: Annotated[str | None, typer.Option(help="What every node runs; a shell line.")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Sealed before it is sent.")
    ] = None,
    port: Annotated[list[int] | None, typer.Option(help="Open between the nodes.")] = None,
    ssh_key: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE|TEXT", help="Public key that may log in."),
    ] = None,
) -> dict[str, Any]:
    """Return what was given of the workload."""
    given: dict[str, Any] = {}
    if command is not None:
        given["command"] = command
    if env:
        given["env"] = _environment(env)
    if port:
        given["ports"] = tuple(port)
    if ssh_key:
        given["ssh_keys"] = tuple(_public_key(text) for text in ssh_key)
    return given


def takes_wish(*, priced: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command `--file` and the flags of a cluster; it receives them as one `wish`.

    Args:
        priced: With the flags that the price depends on, not only those of the workload.
    """
    shape: tuple[Reader, ...] = (_shape_flags,) if priced else ()
    readers = (*shape, _workload_flags)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**values: Any) -> None:
            file = values.pop("file")
            flags: dict[str, Any] = {}
            for reader in readers:
                flags |= reader(**{name: values.pop(name) for name in parameters(reader)})
            command(wish=read_wish(file, flags), **values)

        own = parameters(command)
        del own["wish"]
        sign(run, [own, parameters(_file_flag), *map(parameters, readers)])
        return run

    return decorate


def _file_flag(file: File = None) -> dict[str, Any]:
    return {"file": file}


def read_wish(file: str | None, flags: dict[str, Any]) -> Wish:
    """Return the cluster that a file and some flags describe together.

    Raises:
        InvalidSpec: With every mistake in the file, else in the flags.
    """
    if file is None:
        return Wish(build(ClusterSpec, flags, what="the flags are not valid") if flags else None)
    from_file, lines = read_cluster_lines(read_file(file), file)
    written = from_file.model_dump(exclude_unset=True)
    if not flags:
        return Wish(from_file, file=file, lines=lines)
    merged = build(ClusterSpec, {**written, **_merged(written, flags)}, what="the flags and file")
    notes = [
        f"--{_option(name)} wins over {name} in {file}"
        for name in flags
        if name in written and getattr(merged, name) != getattr(from_file, name)
    ]
    return Wish(merged, notes, file=file, lines=lines, flags=flags)


def _merged(written: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags, with maps that add to the file's map rather than replace it."""
    maps = {"env", "recovery"} & flags.keys() & written.keys()
    return {**flags, **{name: {**written[name], **flags[name]} for name in maps}}


def _option(field: str) -> str:
    singular = {"ports": "port", "ssh_keys": "ssh-key"}
    return singular.get(field, field.replace("_", "-"))


def read_file(name: str) -> bytes:
    """Return a regular file's bytes, or standard input's for `-`, up to a document's limit.

    Raises:
        InvalidSpec: It cannot be read.
    """
    if name == "-" and sys.stdin is not None:
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        with open_regular(Path(name)) as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or "cannot be opened"
        if not isinstance(error, FileNotFoundError | IsADirectoryError | PermissionError):
            reason += "; what a program writes is read from standard input: give -"
    except ValueError:
        reason = "is no file name"
    raise InvalidSpec(f"cannot be read: {reason}", source=name)


def _environment(pairs: Sequence[str]) -> dict[str, str]:
    env: dict[str, str] = {}
    for at, pair in enumerate(pairs, start=1):
        name, equals, value = pair.partition("=")
        if not equals:
            # Never shown: it may be a value whose name was forgotten.
            raise InvalidSpec(f"--env number {at} is not KEY=VALUE")
        if name in env:
            raise InvalidSpec(f"--env gives {name[:64]!r} twice")
        env[name] = value
    return env


def _public_key(text: str) -> str:
    if _KEY_TEXT.match(text):
        return text
    try:
        with open_regular(Path(text).expanduser()) as file:
            content = file.read(MAX_KEY_BYTES)
    except (OSError, ValueError, RuntimeError):
        message = "--ssh-key is neither an OpenSSH public key nor a file that can be read"
        raise InvalidSpec(message) from None
    if b"PRIVATE KEY" in content:
        raise InvalidSpec("--ssh-key names a private key; give its public half, the .pub file")
    try:
        return content.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise InvalidSpec("--ssh-key names a file that is no OpenSSH public key") from None
