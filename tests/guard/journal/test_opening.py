"""A journal is what it says, or an error that names the file and what to do."""

import os
import sqlite3
import stat
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from onceward.errors import JournalError
from onceward.evidence import Code, IntentState
from onceward.journal import SQLiteJournal, default_path, new_journal, open_journal
from onceward.journal.conformance_rows import put, sample_intent


@dataclass(frozen=True)
class _Secret:
    fingerprint: str = "f1"


def _refused(path: Path, **options) -> JournalError:
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(JournalError) as caught:
        open_journal(path, **options)
    assert before == (path.read_bytes() if path.exists() else None)
    assert str(path) in str(caught.value)
    return caught.value


def _write(path: Path, rows: int = 1) -> None:
    with closing(open_journal(path)) as journal:
        put(journal, *(sample_intent(f"{n}", 1.0) for n in range(rows)))


def test_only_the_owner_may_read_a_new_journal(tmp_path):
    """Arguments of calls are in it; the folder and the files beside it are no way around."""
    path = tmp_path / "state" / "onceward" / "journal.db"
    old = os.umask(0)
    try:
        with closing(open_journal(path)) as journal:
            put(journal, sample_intent("a", 1.0, state=IntentState.UNKNOWN))
            files = sorted(path.parent.iterdir())
            assert ["journal.db", "journal.db-shm", "journal.db-wal"] == [file.name for file in files]
            assert {0o600} == {stat.S_IMODE(file.stat().st_mode) for file in files}
            assert {0o700} == {stat.S_IMODE(folder.stat().st_mode) for folder in (path.parent, path.parent.parent)}
            path.chmod(0o644)
            (problem,) = journal.check()
            assert str(path) in problem
    finally:
        os.umask(old)


def test_an_empty_file_is_not_a_new_journal(tmp_path):
    """Somebody cut it to nothing; an empty start would forget what was sent."""
    path = tmp_path / "journal.db"
    path.touch()
    assert "is empty" in str(_refused(path))


@pytest.mark.parametrize("content", [b"scope: thread\n" * 400, b"x", b"SQLite format 3\0 and nothing else"])
def test_a_foreign_file_is_left_alone(tmp_path, content):
    """A path mistyped must not cost somebody a file."""
    path = tmp_path / "notes.yaml"
    path.write_bytes(content)
    assert Code.JOURNAL_UNAVAILABLE is _refused(path).code


def test_another_database_is_not_a_journal(tmp_path):
    """Also one that SQLite likes."""
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE notes (text)")
    assert "not a journal of Onceward" in str(_refused(path))


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
def test_a_truncated_journal_is_an_error(tmp_path, keep):
    """Half a memory is worse than none that is known to be missing."""
    path = tmp_path / "journal.db"
    _write(path, rows=300)
    os.truncate(path, int(path.stat().st_size * keep) // 4096 * 4096)
    assert "restore" in _refused(path).remedy


def test_a_newer_schema_is_an_error(tmp_path):
    """An older version cannot know what the newer one wrote down."""
    path = tmp_path / "journal.db"
    _write(path)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE meta SET value = '99' WHERE name = 'schema_version'")
    assert "upgrade" in _refused(path).remedy


def test_another_secret_is_refused(tmp_path):
    """Its keys would not be those that were sent."""
    path = tmp_path / "journal.db"
    open_journal(path, secret=_Secret()).close()
    assert "another secret" in str(_refused(path, secret=_Secret("f2")))
    open_journal(path, secret=_Secret()).close()
    open_journal(path).close()


def test_a_journal_that_its_secret_knows_may_not_vanish(tmp_path):
    """The same keys without the memory of what they did: writes stop until a person says why they may go on."""
    path, secret_path = tmp_path / "journal.db", tmp_path / "secret"
    known = {"secret": _Secret(), "secret_path": secret_path}
    open_journal(path, **known).close()
    assert 0o600 == stat.S_IMODE((tmp_path / "secret.journals").stat().st_mode)
    open_journal(path, **known).close()
    assert 1 == len((tmp_path / "secret.journals").read_text().splitlines())
    path.unlink()
    for _ in range(2):
        error = _refused(path, **known)
        assert Code.JOURNAL_MISSING is error.code
        assert "onceward journal new --why" in error.remedy
    with closing(new_journal(path, why="disk lost", who="person:ann", **known)) as journal:
        (event,) = journal.history()
        assert ("person:ann", "journal_new", "disk lost") == (event.who, event.what, event.why)
    open_journal(path, **known).close()


def test_a_journal_exchanged_for_another_is_missing(tmp_path):
    """A file at the right place with the wrong memory."""
    path, secret_path = tmp_path / "journal.db", tmp_path / "secret"
    open_journal(path, secret_path=secret_path).close()
    path.unlink()
    _write(path)
    assert Code.JOURNAL_MISSING is _refused(path, secret_path=secret_path).code


def test_an_expected_journal_is_not_begun(tmp_path):
    """For secrets that come from the environment and have no list beside them."""
    path = tmp_path / "journal.db"
    assert Code.JOURNAL_MISSING is _refused(path, expected=True).code
    assert Code.JOURNAL_MISSING is _refused(path, create=False).code
    assert [] == list(tmp_path.iterdir())


def test_a_log_without_its_journal_is_not_played_into_a_new_one(tmp_path):
    """SQLite would take the old log for the new file's own."""
    path = tmp_path / "journal.db"
    log = tmp_path / "journal.db-wal"
    log.write_bytes(b"frames of the one that is gone")
    assert Code.JOURNAL_MISSING is _refused(path).code
    with closing(new_journal(path, why="restored without its log")) as journal:
        assert [] == list(journal.list())
    assert [b"frames of the one that is gone"] == [left.read_bytes() for left in tmp_path.glob("*.left")]


def test_a_new_journal_replaces_nothing(tmp_path):
    """`journal new` is for a journal that is gone."""
    path = tmp_path / "journal.db"
    _write(path)
    before = path.read_bytes()
    with pytest.raises(JournalError):
        new_journal(path, why="tired of it")
    assert before == path.read_bytes()


def test_a_new_journal_says_how_long_it_is_new(tmp_path):
    """A first send is preceded by a read-back until then; an old journal reopened is as old as it was."""
    path = tmp_path / "journal.db"
    with closing(SQLiteJournal(path, time_source=lambda: 1_000.0, monotonic=lambda: 0.0, new_for_s=60.0)) as journal:
        assert (1_000.0, 1_060.0) == (journal.new_since_s, journal.new_until_s)
    with closing(SQLiteJournal(path, time_source=lambda: 9_000.0)) as journal:
        assert (1_000.0, 1_900.0) == (journal.new_since_s, journal.new_until_s)


def test_the_default_place_follows_the_environment(tmp_path, monkeypatch):
    """A path of one's own, then the user's state folder."""
    monkeypatch.delenv("ONCEWARD_JOURNAL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert tmp_path / "onceward" / "journal.db" == default_path()
    monkeypatch.setenv("ONCEWARD_JOURNAL", str(tmp_path / "mine.db"))
    assert tmp_path / "mine.db" == default_path()
    with closing(open_journal(f"sqlite://{tmp_path}/url.db")) as journal:
        assert tmp_path / "url.db" == journal.path


def test_a_place_where_no_file_can_be_is_an_error(tmp_path):
    """Of the journal's own family, so that a caller is refused and not crashed."""
    (tmp_path / "file").write_text("x")
    assert "local disk" in _refused(tmp_path / "file" / "journal.db").remedy
    (tmp_path / "folder").mkdir()
    with pytest.raises(JournalError):
        open_journal(tmp_path / "folder")


def test_an_unknown_kind_of_address_is_refused():
    """Never a file of that name by accident."""
    with pytest.raises(JournalError) as caught:
        open_journal("redis://localhost/0")
    assert "sqlite:" in caught.value.remedy
