"""The one SQLite file that is the simulated cloud, shared by any number of processes.

Write-ahead log, `BEGIN IMMEDIATE`, one transaction per provider call: a process killed at any
instant leaves either the whole call or nothing of it. Times are whole microseconds, so that a
moment computed by addition is exactly the moment that the clock later shows.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from garrison.errors import ProviderError, ProviderUnreachable

Clock = Callable[[], datetime]
Tx = sqlite3.Connection

LOCK_TIMEOUT = 4.0
"""Seconds to wait for our own threads, and again for other processes.

Both together stay under the provider's default `effect_bound`: a call whose caller has gone
takes effect within that time or not at all.
"""

SCHEMA_VERSION = 3
_MAKING = threading.Lock()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_SCHEMA = """
CREATE TABLE purchases (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    token TEXT NOT NULL UNIQUE,
    installation TEXT NOT NULL,
    owner TEXT NOT NULL,
    uid TEXT NOT NULL,
    name TEXT NOT NULL,
    region TEXT NOT NULL,
    instance_type TEXT NOT NULL,
    capacity_type TEXT NOT NULL,
    usd TEXT NOT NULL,
    wanted INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    refused_code TEXT,
    refused_message TEXT
);
CREATE TABLE machines (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    provider_id TEXT NOT NULL UNIQUE,
    purchase INTEGER NOT NULL REFERENCES purchases (id),
    rank INTEGER NOT NULL,
    installation TEXT NOT NULL,
    uid TEXT NOT NULL,
    region TEXT NOT NULL,
    instance_type TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    shown_at INTEGER NOT NULL,
    booting_at INTEGER NOT NULL,
    ready_at INTEGER NOT NULL,
    incarnation INTEGER NOT NULL DEFAULT 1,
    killed_at INTEGER,
    fails_at INTEGER,
    failure TEXT,
    failure_message TEXT,
    ending_at INTEGER,
    terminated_at INTEGER,
    end_late INTEGER NOT NULL DEFAULT 0,
    listed_until INTEGER,
    authorized_keys TEXT NOT NULL DEFAULT '[]'
);
CREATE INDEX machines_listed ON machines (installation, listed_until);
CREATE INDEX machines_bought ON machines (purchase, terminated_at);
CREATE INDEX machines_owned ON machines (uid, terminated_at);
CREATE INDEX machines_placed ON machines (region, instance_type, terminated_at);
CREATE TABLE restarts (token TEXT PRIMARY KEY, provider_id TEXT NOT NULL, at INTEGER NOT NULL);
CREATE TABLE pending (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    effect_at INTEGER NOT NULL,
    call TEXT NOT NULL,
    "order" TEXT NOT NULL
);
CREATE TABLE workloads (
    machine INTEGER NOT NULL REFERENCES machines (id),
    name TEXT NOT NULL,
    generation INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    command TEXT NOT NULL,
    env_names TEXT NOT NULL,
    restart TEXT NOT NULL,
    max_restarts INTEGER NOT NULL,
    state TEXT NOT NULL,
    exit_code INTEGER,
    restarts INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    log_size INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (machine, name)
) WITHOUT ROWID;
CREATE TABLE log (
    machine INTEGER NOT NULL,
    name TEXT NOT NULL,
    offset INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (machine, name, offset)
);
CREATE TABLE stock (
    region TEXT NOT NULL,
    instance_type TEXT NOT NULL,
    total INTEGER NOT NULL,
    PRIMARY KEY (region, instance_type)
);
CREATE TABLE prices (
    region TEXT NOT NULL,
    instance_type TEXT NOT NULL,
    capacity_type TEXT NOT NULL,
    usd TEXT NOT NULL,
    PRIMARY KEY (region, instance_type, capacity_type)
);
CREATE TABLE faults (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    call TEXT NOT NULL,
    rule TEXT NOT NULL,
    remaining INTEGER,
    skip INTEGER NOT NULL,
    until INTEGER
);
CREATE INDEX faults_of_call ON faults (call);
CREATE TABLE calls (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    call TEXT NOT NULL,
    token TEXT NOT NULL,
    owner TEXT NOT NULL,
    result TEXT NOT NULL,
    early INTEGER NOT NULL
);
CREATE TABLE bucket (only INTEGER PRIMARY KEY CHECK (only = 1), level REAL, at INTEGER);
CREATE TABLE windows (scope TEXT PRIMARY KEY, until INTEGER NOT NULL);
CREATE TABLE peaks (
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    machines INTEGER NOT NULL,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID;
"""

_SINCE_2 = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    machine INTEGER NOT NULL REFERENCES machines (id),
    name TEXT NOT NULL,
    generation INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    command TEXT NOT NULL,
    begun_at INTEGER NOT NULL,
    ended_at INTEGER,
    stopped INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX runs_open ON runs (machine, ended_at);
"""
"""What files of version 1 lack."""

_SINCE_3 = """
ALTER TABLE machines ADD COLUMN notice_at INTEGER;
ALTER TABLE machines ADD COLUMN taken_at INTEGER
"""
"""What files of version 2 lack."""

_STEPS = (_SCHEMA, _SINCE_2, _SINCE_3)
"""What each version adds to the one before it."""


class Store:
    """An open file; transactions of one process take turns on one connection."""

    def __init__(self, path: Path) -> None:
        """Open the file and create it if it is missing.

        Raises:
            ProviderUnreachable: It cannot be opened, or another process holds it.
            ProviderError: It is something else than a simulated cloud.
        """
        self._path = path
        self._lock = threading.Lock()
        with self._translated():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _keep_private(path)
            self._connection = _open(path)
        weakref.finalize(self, self._connection.close)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Tx]:
        """Run the body alone, across all processes; all of it is kept or nothing.

        Raises:
            ProviderUnreachable: The file stayed locked; nothing was changed.
            ProviderError: The file is damaged.
        """
        if not self._lock.acquire(timeout=LOCK_TIMEOUT):
            raise ProviderUnreachable("the simulated cloud is busy")
        try:
            with self._translated(), _begun(self._connection) as tx:
                yield tx
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.OperationalError) as error:
            raise ProviderUnreachable(f"{self._path}: {error}") from error
        except sqlite3.IntegrityError:
            raise  # a bug of ours, not a state of the file
        except sqlite3.DatabaseError as error:
            raise ProviderError(f"{self._path} is not a simulated cloud: {error}") from error


def micros(moment: datetime) -> int:
    """Return a time as whole microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def moment(value: int) -> datetime:
    """Return the time of whole microseconds since 1970."""
    return _EPOCH + value * _MICROSECOND


def span(duration: timedelta | float) -> int:
    """Return a duration, or seconds, as whole microseconds."""
    if not isinstance(duration, timedelta):
        duration = timedelta(seconds=duration)
    return duration // _MICROSECOND


def now_utc() -> datetime:
    """Return the time of day, the clock unless another one is given."""
    return datetime.now(UTC)


@contextlib.contextmanager
def _begun(connection: sqlite3.Connection) -> Iterator[Tx]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _keep_private(path: Path) -> None:
    """Make the file, for its owner alone; take it from others if it was theirs to read.

    SQLite gives the files beside it the same mode.
    """
    # One at a time: to close a file drops the locks that this process has on it through SQLite.
    with _MAKING, contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    for file in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
        with contextlib.suppress(FileNotFoundError):  # those two come and go
            found = file.stat()
            if found.st_mode & 0o077 and found.st_uid == os.geteuid():
                file.chmod(0o600)


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=LOCK_TIMEOUT, isolation_level=None, check_same_thread=False
    )
    try:
        _use_write_ahead_log(connection)
        # In this mode NORMAL can lose the last commits to a power cut, never to a killed process.
        connection.execute("PRAGMA synchronous = NORMAL")
        with _begun(connection) as tx:
            _create_schema(tx)
    except BaseException:
        connection.close()
        raise
    return connection


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    # SQLite does not wait for its busy timeout when two processes switch a new file at once.
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _create_schema(tx: Tx) -> None:
    (version,) = tx.execute("PRAGMA user_version").fetchone()
    if version == SCHEMA_VERSION:
        return
    (tables,) = tx.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version not in range(SCHEMA_VERSION) or (tables and not version):
        raise sqlite3.DatabaseError(f"schema {version}, expected {SCHEMA_VERSION}")
    for step in _STEPS[version:]:
        for statement in step.split(";"):
            tx.execute(statement)
    tx.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
