"""`onceward journal` as a person types it."""

import json
from contextlib import closing

import pytest

from onceward.adapters.cli import main
from onceward.evidence import AttemptState, Code, IntentState
from onceward.journal import open_journal
from onceward.journal.conformance_rows import put, sample_attempt, sample_intent


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A journal with one intent that happened long ago, one that is held, and one that is new."""
    path = tmp_path / "journal.db"
    monkeypatch.setenv("ONCEWARD_JOURNAL", str(path))
    monkeypatch.setenv("ONCEWARD_SECRET_FILE", str(tmp_path / "secret"))
    with closing(open_journal(path)) as journal:
        old_s = journal.clock() - 500_000
        done = {"state": IntentState.HAPPENED, "open": False, "settled_s": old_s + 5, "result": "{}"}
        put(
            journal,
            sample_intent("old", old_s, **done),
            sample_intent("held", old_s, state=IntentState.UNKNOWN, code=Code.UNVERIFIABLE, owner="ops"),
            sample_intent("new", journal.clock(), scope="thread-2", state=IntentState.UNKNOWN),
        )
        attempt = sample_attempt("id-old", old_s + 1, "h|7|1|x", state=AttemptState.HAPPENED, ended_s=old_s + 3)
        journal.run(lambda s: s.put_attempt(attempt, new=True))
        journal.run(lambda s: s.event("id-old", "person:ann", "told", "looked at the bank's page"))
    return path


def _json(capsys, *words):
    assert 0 == main(["journal", *words, "--json"])
    return json.loads(capsys.readouterr().out)


def test_list_filters(place, capsys):
    """Newest first, as JSON for programs and as a table for people."""
    for expected, words in (
        (["id-new", "id-held", "id-old"], []),
        (["id-new", "id-held"], ["--limit", "2"]),
        (["id-new"], ["--scope", "thread-2"]),
        (["id-old"], ["--state", "happened"]),
        (["id-new", "id-held", "id-old"], ["--state", "happened", "--state", "unknown"]),
        (["id-held"], ["--held"]),
        (["id-new", "id-held"], ["--unsettled"]),
    ):
        assert expected == [row["intent"] for row in _json(capsys, "list", *words)]
    assert 0 == main(["journal", "list"])
    assert "id-held" in capsys.readouterr().out


def test_show_tells_the_story_in_order(place, capsys):
    """Attempts and decisions on one line of time."""
    shown = _json(capsys, "show", "id-o")
    assert ["intent begun", "attempt 1 begun", "attempt 1: happened", "told"] == [t["what"] for t in shown["timeline"]]
    assert 0 == main(["journal", "show", "id-o"])
    out = capsys.readouterr().out
    assert "bank's" in out
    assert "h pid 7" in out


def test_show_wants_one_intent(place, capsys):
    """A prefix that fits none or several is an error that lists them."""
    for prefix, said in (("id-", "3 intents"), ("zz", "no intent")):
        assert 2 == main(["journal", "show", prefix])
        assert said in capsys.readouterr().err


def test_purge_counts_before_it_drops(place, capsys):
    """A dry run changes nothing."""
    expected = {"purged": 1, "tombstones_dropped": 0}
    assert expected == _json(capsys, "purge", "--dry-run")
    assert {} != _json(capsys, "list", "--state", "happened")[0]["arguments"]
    assert expected == _json(capsys, "purge")
    assert None is _json(capsys, "list", "--state", "happened")[0]["arguments"]


def test_check_finds_an_open_file(place, capsys):
    """Exit code 0 for a sound journal, 1 for one that is not."""
    assert [] == _json(capsys, "check")
    place.chmod(0o644)
    assert 1 == main(["journal", "check"])
    assert "chmod 600" in capsys.readouterr().out


def test_export_prints_every_row_on_a_line(place, capsys):
    """For other tools; nothing is left out."""
    assert 0 == main(["journal", "export"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert ["intent", "intent", "intent", "event"] == [row["row"] for row in rows]
    assert ["happened"] == [attempt["state"] for attempt in rows[2]["attempts"]]


def test_looking_makes_no_journal(place, capsys):
    """A path mistyped is an error, not an empty list."""
    place.unlink()
    assert 2 == main(["journal", "list"])
    assert str(place) in capsys.readouterr().err
    assert not place.exists()


def test_new_begins_a_journal_and_says_why(place, capsys):
    """Only where one is gone, and never without a reason."""
    assert 2 == main(["journal", "new", "--why", "tired"])
    place.unlink()
    for left in place.parent.glob("journal.db-*"):
        left.unlink()
    assert 2 == main(["journal", "new", "--why", "  "])
    assert not place.exists()
    assert 0 == main(["journal", "new", "--why", "disk lost", "--by", "ann"])
    with closing(open_journal(place)) as journal:
        assert [("person:ann", "disk lost")] == [(event.who, event.why) for event in journal.history()]
