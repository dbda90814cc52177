"""Keys that any machine derives again, and a secret that is made once and never shown."""

from __future__ import annotations

import base64
import re
import stat
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path

import pytest

from onceward.errors import JournalError
from onceward.evidence import Code
from onceward.keys import KeyFormat, Secret, derive, load_secret

SECRET = bytes(range(32))
INTENT = "ab" * 32
LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


# --- keys


@pytest.mark.parametrize(
    ("key", "generation", "form"),
    [
        ("0e03e201c82f03e97f73f1d8fdaa2334", 0, KeyFormat()),
        ("7c61462dae5a8f7324d138fb3042128a", 1, KeyFormat()),
        ("oaitz3k4i4gtmw903ulcq7lbe6mhxvwd", 0, KeyFormat(alphabet=LETTERS)),
        (
            "Wd4ErV5nHMt9xig1Riiom2W8JFELJE5GDZqZ7P6kv4QUsd1ECAEuRTGhq9xZfzww",
            0,
            KeyFormat(min=64, max=255, alphabet=BASE58),
        ),
        ("673311082614024132206", 0, KeyFormat(max=21, alphabet="0123456789")),
        ("46ad68fa-a968-467a-8928-e0a2b069184b", 0, KeyFormat(kind="uuid")),
        ("08e8ef54-3256-41d7-b6b7-f85b586918d5", 7, KeyFormat(kind="uuid")),
    ],
)
def test_a_later_version_derives_the_same_keys(key: str, generation: int, form: KeyFormat) -> None:
    """A key that changes with an upgrade charges a card twice. These vectors must stand for good."""
    assert key == derive(SECRET, INTENT, generation, form)
    assert key == derive(SECRET, INTENT, generation, form)


def test_the_key_moves_with_secret_intent_and_generation() -> None:
    """Each of the three names another key."""
    form = KeyFormat()
    keys = [
        derive(SECRET, INTENT, 0, form),
        derive(b"t" * 32, INTENT, 0, form),
        derive(SECRET, "cd" * 32, 0, form),
        derive(SECRET, INTENT, 1, form),
        derive(SECRET, INTENT, 10, form),
    ]
    assert 5 == len(set(keys))


@pytest.mark.parametrize(
    ("length", "form"),
    [
        (32, KeyFormat()),
        (32, KeyFormat(max=255)),
        (16, KeyFormat(max=16)),
        (17, KeyFormat(max=17)),
        (40, KeyFormat(min=40, max=64)),
        (33, KeyFormat(min=33, max=64, alphabet="0123456789")),
        (32, KeyFormat(alphabet=LETTERS)),
    ],
)
def test_a_token_has_the_length_and_the_characters_of_its_format(length: int, form: KeyFormat) -> None:
    """32 characters, or as near to it as the service allows."""
    key = derive(SECRET, INTENT, 0, form)
    assert length == len(key) == form.length
    assert set(key) <= set(form.alphabet)


def test_a_uuid_is_one_of_version_4() -> None:
    """Services that check for a UUID check for that version."""
    for generation in range(50):
        key = derive(SECRET, INTENT, generation, KeyFormat(kind="uuid"))
        assert key == str(uuid.UUID(key))
        assert (4, uuid.RFC_4122) == (uuid.UUID(key).version, uuid.UUID(key).variant)
    assert 36 == KeyFormat(kind="uuid").length


def test_every_character_has_the_same_chance_at_every_place() -> None:
    """A remainder of single bytes would prefer the first letters of an alphabet that 256 is no multiple of."""
    form = KeyFormat(min=48, max=48, alphabet=BASE58)
    keys = [derive(SECRET, INTENT, generation, form) for generation in range(400)]
    seen = Counter("".join(keys))
    mean = 400 * 48 / len(BASE58)
    assert all(0.75 * mean < seen[char] < 1.25 * mean for char in BASE58)
    assert all(len({key[place] for key in keys}) > 50 for place in range(48))


@pytest.mark.parametrize(
    "fields",
    [
        {"max": 15},
        {"max": 32, "alphabet": "01"},
        {"max": 19, "alphabet": "0123456789"},
        {"min": 0},
        {"min": 33, "max": 32},
        {"alphabet": "a"},
        {"alphabet": "abcdefghijklmnopa"},
    ],
)
def test_a_format_whose_keys_could_meet_is_refused(fields: dict[str, object]) -> None:
    """Two intents with one key are one intent to the service: the second would never happen."""
    with pytest.raises(ValueError):
        KeyFormat(**fields)  # type: ignore[arg-type]  # the fields of KeyFormat


# --- the secret


def test_the_first_use_makes_a_secret_that_only_its_owner_can_read(tmp_path: Path) -> None:
    """And every later use reads that one."""
    path = tmp_path / "new" / "folder" / "secret"
    made = load_secret(path, {})
    assert 32 == len(made.bytes)
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert ["secret"] == [file.name for file in path.parent.iterdir()]
    assert made == load_secret(path, {})
    assert made != load_secret(tmp_path / "other", {})


def test_processes_that_start_at_once_read_one_secret(tmp_path: Path) -> None:
    """Two secrets would be two keys for one intent."""
    path, go = tmp_path / "secret", tmp_path / "go"
    code = (
        "import sys, time, pathlib\nfrom onceward.keys import load_secret\n"
        "print('ready', flush=True)\nwhile not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.0005)\n"
        "print(load_secret(pathlib.Path(sys.argv[1]), {}).fingerprint)"
    )
    command = [sys.executable, "-c", code, str(path), str(go)]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(5)]
    assert ["ready\n"] * 5 == [racer.stdout.readline() for racer in racers if racer.stdout]
    go.touch()
    found = {racer.communicate(timeout=30)[0].strip() for racer in racers}
    assert {load_secret(path, {}).fingerprint} == found
    assert ["go", "secret"] == sorted(file.name for file in tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        SECRET.hex(),
        SECRET.hex().upper() + "\n",
        base64.b64encode(SECRET).decode(),
        base64.urlsafe_b64encode(SECRET).decode().rstrip("="),
    ],
)
def test_the_environment_comes_first_in_hex_or_base64(tmp_path: Path, text: str) -> None:
    """Containers have their secrets there; no file is then made."""
    path = tmp_path / "secret"
    assert Secret(SECRET) == load_secret(path, {"ONCEWARD_SECRET": text})
    assert Secret(SECRET) == load_secret(None, {"ONCEWARD_SECRET": text})
    assert not path.exists()
    path.write_text(text)
    path.chmod(0o600)
    assert Secret(SECRET) == load_secret(path, {})


@pytest.mark.parametrize(
    "text", ["", "   ", "ab" * 31, "abc", "a b c!", "\u00e9" * 64, base64.b64encode(b"x" * 31).decode()]
)
def test_a_secret_that_is_given_but_unusable_is_an_error_never_a_new_secret(tmp_path: Path, text: str) -> None:
    """An empty variable is a deployment gone wrong: to make another secret would change every key."""
    path = tmp_path / "secret"
    with pytest.raises(JournalError) as refused:
        load_secret(path, {"ONCEWARD_SECRET": text})
    assert not path.exists()
    assert "ONCEWARD_SECRET" in str(refused.value)
    assert "openssl rand -hex 32" in refused.value.remedy
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(JournalError) as refused:
        load_secret(path, {})
    assert text == path.read_text()
    assert Code.JOURNAL_UNAVAILABLE is refused.value.code
    assert not text.strip() or text not in str(refused.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o700 | 0o001])
def test_a_secret_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    """Whoever reads it can name every key; the remedy is one command."""
    path = tmp_path / "secret"
    load_secret(path, {})
    path.chmod(mode)
    with pytest.raises(JournalError) as refused:
        load_secret(path, {})
    assert f"chmod 600 {path}" in refused.value.remedy
    assert mode == stat.S_IMODE(path.stat().st_mode)


def test_what_is_no_file_or_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    """Each with a remedy, none with a traceback of the operating system's."""
    (tmp_path / "folder").mkdir(mode=0o700)
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name, problem in (
        ("folder", "not a file"),
        ("file/secret", "cannot be read or made"),
        ("link", "link to nothing"),
    ):
        with pytest.raises(JournalError, match=problem) as refused:
            load_secret(tmp_path / name, {})
        assert refused.value.remedy
    with pytest.raises(JournalError, match="no deployment secret"):
        load_secret(None, {})
    assert ["file", "folder", "link"] == sorted(file.name for file in tmp_path.iterdir())


def test_a_secret_does_not_show_itself() -> None:
    """Neither in a log of the object nor through its fingerprint, which is fixed for good."""
    secret = Secret(SECRET)
    shown = f"{secret!r} {secret} {secret.fingerprint}"
    assert SECRET.hex() not in shown
    assert repr(SECRET) not in shown
    assert re.fullmatch("[0-9a-f]{16}", secret.fingerprint)
    assert "a9cab47e0a5ef800" == secret.fingerprint
    assert secret.fingerprint != Secret(b"t" * 32).fingerprint
