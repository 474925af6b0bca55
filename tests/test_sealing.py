"""Sealing: only the installation's key opens, and no message holds a value."""

from __future__ import annotations

import base64
import os
import stat
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.public import PrivateKey

from garrison import sealing
from garrison.domain.secrets import is_sealed, unsealed_names
from garrison.errors import InvalidSpec, NotFound
from garrison.sealing import (
    KeyPair,
    load_key_pair,
    load_or_create_key_pair,
    open_env,
    open_sealed,
    read_public_key,
    seal,
    seal_env,
)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return load_or_create_key_pair(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return load_or_create_key_pair(tmp_path_factory.mktemp("other"))


def _public_of(data_dir: Path) -> str:
    return load_or_create_key_pair(data_dir).public_text


def test_keys_are_stored_for_their_owner_only(tmp_path: Path) -> None:
    made = load_or_create_key_pair(tmp_path / "data")

    folder = tmp_path / "data" / "keys"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "sealing.key").stat().st_mode) == 0o600
    assert sorted(path.name for path in folder.iterdir()) == ["sealing.key", "sealing.pub"]
    assert read_public_key(tmp_path / "data") == made.public_text
    assert load_key_pair(tmp_path / "data").public_text == made.public_text


def test_processes_that_start_together_get_the_same_keys(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4) as pool:
        made = set(pool.map(_public_of, [tmp_path / "data"] * 12))

    assert len(made) == 1
    assert len(list((tmp_path / "data" / "keys").iterdir())) == 2


def test_a_lost_public_half_is_published_again(tmp_path: Path) -> None:
    made = load_or_create_key_pair(tmp_path)
    (tmp_path / "keys" / "sealing.pub").write_text("rubbish")

    load_or_create_key_pair(tmp_path)

    assert read_public_key(tmp_path) == made.public_text


def test_without_workers_there_are_no_keys(tmp_path: Path) -> None:
    assert read_public_key(tmp_path) is None
    with pytest.raises(NotFound):
        load_key_pair(tmp_path)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    load_or_create_key_pair(tmp_path)
    (tmp_path / "keys" / "sealing.key").chmod(0o644)

    with pytest.raises(InvalidSpec, match="chmod 600"):
        load_key_pair(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"garrison-x25519-private:0:AAAA"])
def test_a_damaged_key_is_refused_rather_than_replaced(tmp_path: Path, content: bytes) -> None:
    load_or_create_key_pair(tmp_path)
    (tmp_path / "keys" / "sealing.key").write_bytes(content)

    with pytest.raises(InvalidSpec, match="damaged"):
        load_or_create_key_pair(tmp_path)


def test_the_private_half_is_not_shown(keys: KeyPair) -> None:
    assert base64.b64encode(bytes(keys.private)).decode() not in f"{keys!r} {keys}"


@pytest.mark.parametrize("value", ["", "x", "数据🚀", "a\nb", "x" * 100_000, "sealed:", "\udc80"])
def test_what_is_sealed_comes_back_exactly(keys: KeyPair, value: str) -> None:
    sealed = seal(keys.public_text, value)

    assert sealed.startswith(f"sealed:{keys.key_id}:")
    assert is_sealed(sealed)
    assert open_sealed(keys, sealed) == value


@given(st.text(max_size=300))
def test_every_text_goes_through_an_environment(value: str) -> None:
    keys = KEYS

    travelled = seal_env(keys.public_text, {"A": value})

    if not value.startswith(("plain:", "secret:")):
        assert unsealed_names(travelled) == ()
        assert open_env(keys, travelled, Path("/nowhere"), environ={}) == {"A": value}


def test_another_installations_seal_is_refused_by_key_ids(keys: KeyPair, others: KeyPair) -> None:
    env = {"TOKEN": seal(others.public_text, "hunter2")}

    with pytest.raises(InvalidSpec) as caught:
        open_env(keys, env, Path("/nowhere"), environ={})

    message = str(caught.value)
    assert "env.TOKEN" in message
    assert keys.key_id in message
    assert others.key_id in message
    assert "hunter2" not in message


def test_a_damaged_seal_is_refused(keys: KeyPair) -> None:
    sealed = seal(keys.public_text, "hunter2")
    body = sealed.rsplit(":", 1)[1]
    damaged = f"sealed:{keys.key_id}:{'A' if body[0] != 'A' else 'B'}{body[1:]}"

    with pytest.raises(InvalidSpec, match="damaged"):
        open_sealed(keys, damaged)


def test_only_well_formed_seals_pass_as_they_are(keys: KeyPair) -> None:
    sealed = seal(keys.public_text, "hunter2")
    env = {"A": sealed, "B": "sealed:my own text", "C": "plain:seen", "D": "secret:hf", "E": ""}

    travelled = seal_env(keys.public_text, env)

    assert travelled["A"] == sealed
    assert (travelled["C"], travelled["D"]) == ("plain:seen", "secret:hf")
    assert open_sealed(keys, travelled["B"]) == "sealed:my own text"
    assert open_sealed(keys, travelled["E"]) == ""
    assert unsealed_names(travelled) == ()


def test_unsealed_values_are_refused_by_name(keys: KeyPair) -> None:
    env = {"A": "hunter2", "B": "plain:x", "C": "sealed:hunter2", "D": ""}

    with pytest.raises(InvalidSpec) as caught:
        open_env(keys, env, Path("/nowhere"), environ={})

    assert [problem.field for problem in caught.value.problems] == ["env.A", "env.C", "env.D"]
    assert unsealed_names(env) == ("A", "C", "D")
    assert "hunter2" not in str(caught.value)


def test_a_secret_comes_from_a_file_less_one_newline_or_from_the_environment(
    keys: KeyPair, tmp_path: Path
) -> None:
    (tmp_path / "hf").write_bytes(b"tok en\n\n")

    opened = open_env(
        keys,
        {"A": "secret:hf", "B": "secret:wandb"},
        tmp_path,
        environ={"GARRISON_SECRET_wandb": "w\n", "GARRISON_SECRET_hf": "not this"},
    )

    assert opened == {"A": "tok en\n", "B": "w\n"}


@pytest.mark.parametrize(
    "name", ["../keys/sealing.key", "/etc/passwd", "", ".", "..", "a/b", "a\0"]
)
def test_a_secret_is_a_plain_file_name(keys: KeyPair, tmp_path: Path, name: str) -> None:
    env = {"A": f"secret:{name}"}

    with pytest.raises(InvalidSpec, match=r"env\.A: .*plain file name"):
        open_env(keys, env, tmp_path, environ={})
    with pytest.raises(InvalidSpec, match=r"env\.A: .*plain file name"):
        seal_env(keys.public_text, env)
    assert unsealed_names(env) == ("A",)


def test_a_missing_secret_is_named_with_where_it_was_looked_for(
    keys: KeyPair, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()

    with pytest.raises(InvalidSpec) as caught:
        open_env(keys, {"A": "secret:hf", "B": "secret:folder"}, tmp_path, environ={})

    assert f"{tmp_path}/hf" in str(caught.value)
    assert "GARRISON_SECRET_hf" in str(caught.value)
    assert "cannot be read" in str(caught.value)


@pytest.mark.parametrize("text", ["", "garrison-x25519:0:AAAA", "ssh-ed25519 AAAA"])
def test_what_is_no_public_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match="public key"):
        seal(text, "hunter2")


def test_a_public_key_that_does_not_fit_its_id_is_refused(keys: KeyPair, others: KeyPair) -> None:
    mixed = others.public_text.replace(others.key_id, keys.key_id)

    with pytest.raises(InvalidSpec, match="does not fit"):
        seal(mixed, "hunter2")


@given(st.from_regex(r"\Asealed:[0-9a-f]{16}:[A-Za-z0-9+/]{60,70}={0,2}\Z") | st.text())
def test_both_layers_mean_the_same_by_sealed(value: str) -> None:
    assert is_sealed(value) == sealing.is_sealed(value)


KEYS = KeyPair("0" * 16, PrivateKey(bytes(range(32))))
KEYS = KeyPair(KEYS.public_text.split(":")[1], KEYS.private)


def test_a_secret_that_is_no_file_is_refused_and_not_waited_for(
    keys: KeyPair, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "hf")

    with pytest.raises(InvalidSpec, match="hf cannot be read: Is no regular file"):
        open_env(keys, {"TOKEN": "secret:hf"}, tmp_path, environ={})
