"""The cluster file: one `cluster:` block in YAML or JSON."""

from __future__ import annotations

from garrison.models.cluster import ClusterSpec
from garrison.models.document import bind, decode, load_document
from garrison.models.problems import KeyPath


def read_cluster_file(content: str | bytes, source: str | None = None) -> ClusterSpec:
    """Return what a cluster file asks for.

    Values of `env` are the text as written: `PORT: 8080` is "8080", `EMPTY:` is "".

    Args:
        content: The file, as text or as its bytes.
        source: The file's name as the user gave it, for messages.

    Raises:
        InvalidSpec: With every mistake, each with its line and key.
    """
    return read_cluster_lines(content, source)[0]


def read_cluster_lines(
    content: str | bytes, source: str | None = None
) -> tuple[ClusterSpec, dict[KeyPath, int]]:
    """Return what a cluster file asks for, and the line of each of its keys.

    Raises:
        InvalidSpec: As `read_cluster_file`.
    """
    text = decode(content, source) if isinstance(content, bytes) else content
    document = load_document(text, source)
    return bind(document, ClusterSpec, "cluster", verbatim=("env",)), document.lines
