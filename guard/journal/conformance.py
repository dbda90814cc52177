"""What every journal must keep, as tests: subclass `JournalConformance`, override `open`, and let pytest collect it.

    class TestMyJournal(JournalConformance):
        def open(self, tmp: Path) -> Journal:
            return MyJournal(tmp / "journal")

`open` may be called many times for one folder, also in other processes: all of them are the same journal. The tests of
durability start real processes and kill them; such a process imports the file of the subclass to open the journal.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import JournalError
from ..evidence import AttemptState, Code, IntentState
from .base import Holder, IntentRow, Journal, Store
from .conformance_rows import RowConformance, bump, crowd, put, raised, sample_attempt, sample_intent, until


class JournalConformance(RowConformance):
    """All the tests: those of rows, and those of many callers, processes, time and upkeep.

    Besides what `Journal` says, a journal counts its transactions in an attribute `commits`.
    """

    # many callers

    def test_threads_lose_no_update(self, tmp_path: Path) -> None:
        """Every begin is a swap on one row; a lost one is a second effect."""
        with closing(self.open(tmp_path)) as journal:
            seen: list[int] = []
            crowd(16, lambda _: seen.extend(journal.run(bump("i")) for _ in range(10)))
            assert list(range(160)) == sorted(seen)

    def test_many_steps_share_a_commit(self, tmp_path: Path) -> None:
        """While one commit is on its way the next callers gather: they must not queue for the disk one by one."""
        with closing(self.open(tmp_path)) as journal:
            entered, gathered = threading.Event(), threading.Event()
            arrived = threading.Semaphore(0)

            def slow(store: Store) -> None:
                entered.set()
                assert gathered.wait(10)

            def one(n: int) -> None:
                arrived.release()
                journal.run(bump(f"i{n}"))

            leader = threading.Thread(target=lambda: journal.run(slow))
            leader.start()
            assert entered.wait(10)
            before = journal.commits  # type: ignore[attr-defined]  # see the class
            crew = [threading.Thread(target=one, args=(n,)) for n in range(40)]
            for thread in crew:
                thread.start()
                arrived.acquire()
            gathered.set()
            for thread in (leader, *crew):
                thread.join(10)
            # One for the leader and one for all who came meanwhile; a thread may be late by a few steps of its own.
            assert journal.commits - before <= 10  # type: ignore[attr-defined]

    def test_one_bad_step_does_not_hurt_its_neighbours(self, tmp_path: Path) -> None:
        """Callers who share a commit are strangers."""
        with closing(self.open(tmp_path)) as journal:
            told: list[str] = []

            def bad(store: Store) -> None:
                store.swap("bad", 0)
                raise ValueError("mine")

            def one(n: int) -> None:
                if n % 5 == 0:
                    told.append(str(raised(ValueError, lambda: journal.run(bad))))
                else:
                    journal.run(bump("good"))

            crowd(20, one)
            assert ["mine"] * 4 == told
            assert (16, 0) == journal.run(lambda s: (s.version("good"), s.version("bad")))

    def test_async_steps_share_commits_and_keep_their_errors(self, tmp_path: Path) -> None:
        """An event loop is never blocked by the disk, and each task gets its own answer."""
        with closing(self.open(tmp_path)) as journal:

            def bad(store: Store) -> int:
                raise ValueError("mine")

            async def main() -> list[Any]:
                steps = [journal.run_async(bad if n == 7 else bump("i")) for n in range(50)]
                return await asyncio.gather(*steps, return_exceptions=True)

            results = asyncio.run(main())
            assert "mine" == str(results.pop(7))
            assert list(range(49)) == sorted(results)
            assert 49 == journal.run(lambda s: s.version("i"))

    def test_a_cancelled_task_stops_nobody(self, tmp_path: Path) -> None:
        """Its step may be written; the journal goes on."""
        with closing(self.open(tmp_path)) as journal:

            async def main() -> int:
                task = asyncio.ensure_future(journal.run_async(bump("i")))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                return await journal.run_async(bump("j"))

            assert 0 == asyncio.run(main())

    def test_a_note_travels_with_the_next_step(self, tmp_path: Path) -> None:
        """Acknowledgements cost no commit of their own, come before what follows, and a bad one hurts nobody."""
        with closing(self.open(tmp_path)) as journal:

            def bad(store: Store) -> None:
                raise ValueError("lost")

            journal.later(lambda s: s.set_meta("a", "1"))
            journal.later(bad)
            journal.later(lambda s: s.set_meta("b", "2"))
            assert ("1", "2") == journal.run(lambda s: (s.meta("a"), s.meta("b")))

    def test_a_note_is_written_on_close(self, tmp_path: Path) -> None:
        """Nothing follows it, and it is kept."""
        journal = self.open(tmp_path)
        journal.later(lambda s: s.set_meta("a", "1"))
        journal.close()
        journal.close()
        with closing(self.open(tmp_path)) as again:
            assert "1" == again.run(lambda s: s.meta("a"))
        raised(JournalError, lambda: journal.run(lambda s: s.meta("a")))

    def test_a_note_is_written_when_nothing_follows(self, tmp_path: Path) -> None:
        """A caller that was answered, and then silence: another process sees it soon."""
        with closing(self.open(tmp_path)) as journal, closing(self.open(tmp_path)) as other:
            journal.later(lambda s: s.set_meta("a", "1"))
            until(lambda: other.run(lambda s: s.meta("a")) == "1")

    # processes

    def test_processes_lose_no_update(self, tmp_path: Path) -> None:
        """Eight processes, started at once on a folder that has no journal yet."""
        crew = [self._process(tmp_path, "bump", "25") for _ in range(8)]
        seen = sorted(version for child in crew for version in json.loads(_output(child)))
        with closing(self.open(tmp_path)) as journal:
            assert list(range(200)) == seen
            assert 200 == journal.run(lambda s: s.version("shared"))

    def test_a_step_survives_kill(self, tmp_path: Path) -> None:
        """What `run` has returned from is there for the next process, and what it has not is not."""
        child = self._process(tmp_path, "begin_and_hang")
        assert child.stdout is not None
        assert "begun\n" == child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        with closing(self.open(tmp_path)) as journal:
            row, attempts, half = journal.run(lambda s: (s.intent("id-a"), s.attempts("id-a"), s.intent("id-half")))
            assert row is not None
            assert (IntentState.IN_FLIGHT, 1, None) == (row.state, len(attempts), half)
            # Its lease runs for a while yet, and still it is dead.
            assert journal.clock() < attempts[0].lease_until_s
            assert not journal.alive(attempts[0], journal.clock())

    # time

    def test_the_clock_never_goes_back(self, tmp_path: Path) -> None:
        """Nor behind a time that another process has written, once that was read."""
        with closing(self.open(tmp_path)) as journal:
            times = [journal.clock() for _ in range(100)] + [journal.run(lambda s: s.now_s) for _ in range(10)]
            assert sorted(times) == times
            ahead_s = journal.clock() + 1_000
            put(journal, sample_intent("a", ahead_s))
            assert ahead_s <= journal.run(lambda s: (s.intent("id-a"), s.now_s)[1])
            assert ahead_s <= journal.clock()
        with closing(self.open(tmp_path)) as later:
            assert ahead_s <= later.clock()

    def test_an_attempt_lives_while_its_lease_and_its_process_do(self, tmp_path: Path) -> None:
        """A reused pid is another process; another host can only be judged by the lease."""
        with closing(self.open(tmp_path)) as journal:
            me, now_s = journal.holder, journal.clock()
            reused = Holder(me.host, os.getpid(), "1", "x")
            gone = Holder(me.host, 2**22 + 1, "1", "x")
            far = Holder("elsewhere", 2**22 + 1, "1", "x")
            for alive, holder in ((True, me), (False, reused), (False, gone), (True, far)):
                attempt = sample_attempt("id-a", now_s, holder.name)
                assert alive == journal.alive(attempt, now_s), holder
                assert alive == journal.alive(attempt, attempt.lease_until_s)
                assert not journal.alive(attempt, attempt.lease_until_s + 0.001)

    def test_leases_are_extended_while_they_run(self, tmp_path: Path) -> None:
        """Only ours, only of attempts being sent, and never one that has run out: others may have acted on that."""
        with closing(self.open(tmp_path)) as journal:
            mine, now_s = journal.holder.name, journal.clock()
            rows = {
                "running": sample_attempt("id-running", now_s, mine, lease_until_s=now_s + 20),
                "over": sample_attempt("id-over", now_s - 9, mine, lease_until_s=now_s - 1),
                "ended": sample_attempt("id-ended", now_s, mine, state=AttemptState.UNKNOWN, lease_until_s=now_s + 20),
                "theirs": sample_attempt("id-theirs", now_s, "elsewhere|1|1|x", lease_until_s=now_s + 20),
            }
            put(journal, *(sample_intent(name, now_s) for name in rows))
            for row in rows.values():
                journal.run(lambda s, row=row: s.put_attempt(row, new=True))  # type: ignore[misc]
            journal.extend_leases()
            after = {name: journal.run(lambda s, id=row.intent: s.attempts(id))[0] for name, row in rows.items()}  # type: ignore[misc]
            changed = {name for name in rows if after[name].lease_until_s > rows[name].lease_until_s}
            assert {"running"} == changed

    # upkeep

    def test_purge_leaves_tombstones_and_never_touches_the_uncertain(self, tmp_path: Path) -> None:
        """A redelivery after days is still known; what nobody knows is never forgotten."""
        with closing(self.open(tmp_path)) as journal:
            now_s = journal.clock()
            old = {"created_s": now_s - 200_000, "settled_s": now_s - 100_000, "open": False}
            done = sample_intent("done", 0.0, state=IntentState.HAPPENED, result="{}", label="again", **old)
            rows: tuple[IntentRow, ...] = (
                done,
                sample_intent("short", 0.0, state=IntentState.ABSENT, facts={"window_s": 60}, **old),
                sample_intent("recent", now_s, state=IntentState.REFUSED, settled_s=now_s - 80_000, open=False),
                sample_intent("long", 0.0, state=IntentState.HAPPENED, facts={"window_s": 1e6}, **old),
                sample_intent("held", 0.0, state=IntentState.REFUSED, code=Code.UNVERIFIABLE, **old),
                sample_intent("unknown", 0.0, state=IntentState.UNKNOWN, **{**old, "open": True, "settled_s": None}),
            )
            rows = tuple(replace(row, created_s=old["created_s"]) if row.created_s == 0.0 else row for row in rows)
            put(journal, *rows)
            attempt = sample_attempt(done.id, now_s - 200_000, "elsewhere|1|1|x", state=AttemptState.HAPPENED)
            journal.run(lambda s: s.put_attempt(attempt, new=True))
            assert {"purged": 2, "tombstones_dropped": 0} == journal.purge()
            tomb, attempts = journal.run(lambda s: (s.intent(done.id), s.attempts(done.id)))
            kept = replace(rows[0], request="", result=None, facts={"tombstone": True})
            assert (kept, [attempt]) == (tomb, list(attempts)), "that it happened outlasts its details"
            assert list(rows[2:]) == [journal.run(lambda s, id=row.id: s.intent(id)) for row in rows[2:]]  # type: ignore[misc]
            assert {"purged": 0, "tombstones_dropped": 0} == journal.purge()
            assert {"purged": 0, "tombstones_dropped": 2} == journal.purge(tombstone_s=-1.0)
            assert {row.id for row in rows[2:]} == {row.id for row in journal.list()}

    def test_check_names_rows_that_contradict_each_other(self, tmp_path: Path) -> None:
        """A sound journal has nothing to say."""
        with closing(self.open(tmp_path)) as journal:
            row = sample_intent("a", 1.0)
            put(journal, row)
            journal.run(lambda s: s.put_attempt(sample_attempt(row.id, 1.0, journal.holder.name), new=True))
            assert [] == list(journal.check())
            journal.run(lambda s: s.put_intent(replace(row, open=False, state=IntentState.UNKNOWN)))
            (problem,) = journal.check()
            assert row.id in problem

    def _process(self, tmp: Path, act: str, *arguments: str) -> subprocess.Popen[str]:
        """Start `act` of this class in a process of its own."""
        code = f"from {__name__} import child; child()"
        where = [inspect.getfile(type(self)), type(self).__qualname__, str(tmp), act, *arguments]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        return subprocess.Popen(
            [sys.executable, "-c", code, *where], stdout=subprocess.PIPE, text=True, env=environment
        )


def child() -> None:
    """Be the other process of a test: open the journal of the subclass named by the arguments, and act."""
    file, name, tmp, act, *arguments = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("journal_under_test", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    journal: Journal = getattr(module, name)().open(Path(tmp))
    if act == "bump":
        with closing(journal):
            print(json.dumps([journal.run(bump("shared")) for _ in range(int(arguments[0]))]))
    elif act == "begin_and_hang":

        def begin(store: Store) -> None:
            store.put_intent(sample_intent("a", store.now_s), new=True)
            store.put_attempt(sample_attempt("id-a", store.now_s, journal.holder.name), new=True)

        def hang(store: Store) -> None:
            store.put_intent(sample_intent("half", store.now_s), new=True)
            print("begun", flush=True)
            time.sleep(60)

        journal.run(begin)
        journal.run(hang)


def _output(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=60)
    assert 0 == process.returncode
    return out
