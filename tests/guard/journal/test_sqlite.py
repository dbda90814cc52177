"""The SQLite journal keeps what every journal keeps, and what only a file and a process can break."""

import os
import resource
import signal
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from onceward.errors import JournalError
from onceward.evidence import AttemptState, Code, IntentState
from onceward.journal import Holder, SQLiteJournal, Store
from onceward.journal.conformance import JournalConformance
from onceward.journal.conformance_rows import bump, put, sample_attempt, sample_intent, until


class TestSQLite(JournalConformance):
    def open(self, tmp: Path) -> SQLiteJournal:
        return SQLiteJournal(tmp / "journal.db")


@pytest.fixture
def journal(tmp_path):
    with closing(SQLiteJournal(tmp_path / "journal.db", busy_s=0.05)) as journal:
        yield journal


class _Clocks:
    """A wall clock and a monotonic clock that a test sets."""

    def __init__(self, wall_s: float) -> None:
        self.wall_s, self.mono_s = wall_s, 50.0

    def open(self, folder: Path) -> SQLiteJournal:
        path = folder / "journal.db"
        return SQLiteJournal(path, time_source=lambda: self.wall_s, monotonic=lambda: self.mono_s)


def test_a_wall_clock_set_back_shortens_no_wait(tmp_path):
    """The wait for a due time goes on at the pace of the monotonic clock."""
    clocks = _Clocks(10_000.0)
    with closing(clocks.open(tmp_path)) as journal:
        due_s = journal.clock() + 60
        clocks.wall_s, clocks.mono_s = 4_000.0, 110.0
        assert due_s == journal.clock()
        assert due_s == journal.run(lambda s: s.now_s)
        clocks.wall_s = 10_500.0
        assert 10_500.0 == journal.clock()
        clocks.wall_s, clocks.mono_s = 10_000.0, 111.0
        assert 10_501.0 == journal.clock()


def test_a_restart_under_a_clock_set_back_continues_from_the_file(tmp_path):
    """The process that waits may be another one than the process that began."""
    clocks = _Clocks(10_000.0)
    with closing(clocks.open(tmp_path)) as journal:
        put(journal, sample_intent("a", 9_000.0, state=IntentState.UNKNOWN))
        ended = sample_attempt("id-a", 9_000.0, "h|1|1|x", state=AttemptState.UNKNOWN, ended_s=9_990.0)
        journal.run(lambda s: s.put_attempt(ended, new=True))
    clocks.wall_s, clocks.mono_s = 5_000.0, 0.0
    with closing(clocks.open(tmp_path)) as journal:
        assert 9_990.0 == journal.clock()
        clocks.mono_s = 30.0
        assert 10_020.0 == journal.clock()


def test_br040_a_read_that_fails_is_no_first_attempt(journal):
    """A locked file says nothing of what is in it: the caller must be refused, not told that nothing was sent."""
    put(journal, sample_intent("a", 1.0))
    with closing(sqlite3.connect(journal.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalError) as caught:
            journal.run(lambda s: s.latest("base-a"))
        assert Code.JOURNAL_UNAVAILABLE is caught.value.code
        assert "lsof" in caught.value.remedy
        other.execute("ROLLBACK")
    assert "id-a" == journal.run(lambda s: s.latest("base-a")).id


def test_br040_a_damaged_page_is_an_error_not_an_empty_answer(tmp_path):
    """What cannot be read must never look like what was never written."""
    path = tmp_path / "journal.db"
    with closing(SQLiteJournal(path)) as journal:
        put(journal, *(sample_intent(f"{n}", 1.0, request="x" * 500) for n in range(500)))
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(os.urandom(size - 8192))
    with pytest.raises(JournalError) as caught, closing(SQLiteJournal(path)) as journal:
        journal.run(lambda s: [s.latest(f"base-{n}") for n in range(500)])
    assert Code.JOURNAL_UNAVAILABLE is caught.value.code
    assert str(path) in str(caught.value)


def test_br041_a_repeated_begin_recognises_its_own_row(journal):
    """The commit came through and its answer was lost: the same call finds itself, not a stranger in its way."""

    def begin(store: Store) -> str:
        version = store.version("identity-a")
        row = store.latest("base-a")
        if row is None:
            store.swap("identity-a", version)
            store.put_intent(sample_intent("a", store.now_s), new=True)
            attempt = sample_attempt("id-a", store.now_s, journal.holder.name, call="token-1")
            store.put_attempt(attempt, new=True)
            return "begun"
        attempt = store.attempts(row.id)[-1]
        assert journal.alive(attempt, store.now_s)
        return "mine" if (attempt.holder, attempt.call) == (journal.holder.name, "token-1") else "another's"

    assert ["begun", "mine", "mine"] == [journal.run(begin) for _ in range(3)]
    assert (1, 1) == journal.run(lambda s: (s.version("identity-a"), len(s.attempts("id-a"))))


def test_br101_a_reused_pid_does_not_keep_a_dead_run_alive(journal):
    """Some process has that number now; it is not the one that took the lease."""
    now_s = journal.clock()
    me = journal.holder
    crashed = sample_attempt("id-a", now_s, Holder(me.host, os.getpid(), "12345", "old").name)
    assert not journal.alive(crashed, now_s)
    other_journal_here = sample_attempt("id-a", now_s, Holder(me.host, me.pid, me.started, "other").name)
    assert journal.alive(other_journal_here, now_s)


def test_a_full_disk_refuses_the_step_and_keeps_the_rest(journal):
    """Nothing of the refused step is there, and the journal works again once there is space."""
    put(journal, sample_intent("a", 1.0, state=IntentState.UNKNOWN))
    before = list(journal.list())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    try:
        with pytest.raises(JournalError) as caught:
            put(journal, sample_intent("b", 2.0, request="x" * 1_000_000))
        assert before == list(journal.list())
        put(journal, sample_intent("c", 3.0, state=IntentState.UNKNOWN))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert Code.JOURNAL_UNAVAILABLE is caught.value.code
    assert ["id-c", "id-a"] == [row.id for row in journal.list()]
    assert [] == journal.check()


def test_a_failed_commit_fails_its_whole_batch_alike(journal):
    """Nobody of a batch may believe that a step is durable, and nobody is run twice while a lock is held."""
    errors = []

    def one() -> None:
        with pytest.raises(JournalError) as caught:
            journal.run(bump("i"))
        errors.append(caught.value)

    with closing(sqlite3.connect(journal.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        crew = [threading.Thread(target=one) for _ in range(8)]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join(20)
        other.execute("ROLLBACK")
    assert 8 == len({id(error) for error in errors})
    assert 0 == journal.run(bump("i"))


def test_a_note_outlives_a_store_that_cannot_write(journal):
    """It may say how a call ended, and its caller has long gone."""
    with closing(sqlite3.connect(journal.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        journal.later(bump("note"))
        with pytest.raises(JournalError):
            journal.run(bump("i"))
        other.execute("ROLLBACK")
    assert (1, 0) == journal.run(lambda s: (s.version("note"), s.version("i")))


def test_an_interrupted_caller_withdraws_its_step(journal):
    """A step that nobody leads any more must not hold up those behind it."""
    entered, release = threading.Event(), threading.Event()

    def slow(store: Store) -> None:
        entered.set()
        assert release.wait(10)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    leader = threading.Thread(target=lambda: journal.run(slow))
    leader.start()
    assert entered.wait(10)
    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            journal.run(bump("withdrawn"))
    finally:
        signal.signal(signal.SIGALRM, old)
    release.set()
    leader.join(10)
    assert (0, 0) == journal.run(lambda s: (s.version("withdrawn"), s.version("i")))


def test_an_interrupted_leader_leaves_the_others_their_turn(journal):
    """Control-C concerns the thread that gets it."""

    def interrupted(store: Store) -> None:
        store.swap("i", store.version("i"))
        raise KeyboardInterrupt

    journal.later(bump("note"))
    with pytest.raises(KeyboardInterrupt):
        journal.run(interrupted)
    assert (0, 1) == journal.run(lambda s: (s.version("i"), s.version("note")))


def test_a_fork_gets_a_journal_of_its_own(journal):
    """SQLite's locks do not survive a fork, nor does the right to an attempt."""
    put(journal, sample_intent("a", journal.clock()))
    mine = sample_attempt("id-a", journal.clock(), journal.holder.name)
    journal.run(lambda s: s.put_attempt(mine, new=True))
    pid = os.fork()
    if pid == 0:
        ok = journal.run(bump("i")) in range(2) and journal.holder.name != mine.holder and not journal._live
        os._exit(0 if ok else 1)
    journal.run(bump("i"))
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert 2 == journal.run(lambda s: s.version("i"))
    assert journal.alive(mine, journal.clock())


def test_a_heart_beats_while_something_is_sent(tmp_path):
    """A tool that runs longer than a lease is not lost; one that has ended is not kept alive."""
    with closing(SQLiteJournal(tmp_path / "journal.db", lease_s=0.3)) as journal:
        now_s = journal.clock()
        put(journal, sample_intent("a", now_s))
        attempt = sample_attempt("id-a", now_s, journal.holder.name, lease_until_s=now_s + 0.3)
        journal.run(lambda s: s.put_attempt(attempt, new=True))
        until(lambda: journal.run(lambda s: s.attempts("id-a"))[0].lease_until_s > now_s + 0.5)
        ended = replace(journal.run(lambda s: s.attempts("id-a"))[0], state=AttemptState.UNKNOWN)
        journal.run(lambda s: s.put_attempt(ended))
        journal.extend_leases()
        assert ended == journal.run(lambda s: s.attempts("id-a"))[0]


def test_an_attempt_whose_end_cannot_be_written_is_kept_alive_no_longer(journal):
    """Its driver is gone, so its lease runs out and it becomes unknown."""
    now_s = journal.clock()
    put(journal, sample_intent("a", now_s))
    attempt = sample_attempt("id-a", now_s, journal.holder.name)
    journal.run(lambda s: s.put_attempt(attempt, new=True))
    journal.forget(attempt)
    journal.extend_leases()
    assert [attempt] == journal.run(lambda s: s.attempts("id-a"))


def test_events_cannot_be_rewritten_in_the_file(journal):
    """Not even by hand: what a person decided stays what it was."""
    journal.run(lambda s: s.event("id-a", "person:ann", "resolved", "seen on the bank's page"))
    before = list(journal.history())
    with closing(sqlite3.connect(journal.path)) as other, pytest.raises(sqlite3.DatabaseError):
        other.execute("UPDATE events SET why = 'nothing'")
    assert before == list(journal.history())


def test_steps_that_wait_together_take_one_commit(journal):
    """Sixty-four callers, one flush of the disk."""
    entered, release = threading.Event(), threading.Event()

    def slow(store: Store) -> None:
        entered.set()
        assert release.wait(10)

    crew = [threading.Thread(target=lambda: journal.run(slow))]
    crew[0].start()
    assert entered.wait(10)
    before = journal.commits
    crew += [threading.Thread(target=lambda: journal.run(bump("i"))) for _ in range(63)]
    for thread in crew[1:]:
        thread.start()
    until(lambda: len(journal._commits._queue) == 63)
    release.set()
    for thread in crew:
        thread.join(10)
    assert (2, 63) == (journal.commits - before, journal.run(lambda s: s.version("i")))


def test_the_hot_path_walks_no_table(journal):
    """A begin on a million intents reads a handful of rows, whatever SQLite's planner is told."""
    with closing(sqlite3.connect(journal.path)) as other:
        for where in ("id = 'x'", "base = 'x' ORDER BY epoch DESC LIMIT 1", "identity = 'x' AND open = 1 ORDER BY seq"):
            plan = " ".join(row[3] for row in other.execute(f"EXPLAIN QUERY PLAN SELECT * FROM intents WHERE {where}"))
            assert plan.startswith("SEARCH intents USING INDEX"), (where, plan)
        plan = other.execute("EXPLAIN QUERY PLAN SELECT * FROM intents WHERE kind = 'x' AND open = 1").fetchone()[3]
        assert "USING INDEX intents_open" in plan
