"""The part of the conformance suite that one caller can see: rows, one step, and finding them. See conformance.py."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import JournalError
from ..evidence import AttemptState, Code, IntentState
from .base import AttemptRow, IntentRow, Journal, Raced, Store


def sample_intent(name: str, now_s: float, **changes: Any) -> IntentRow:
    """Return an open intent in flight whose hashes are words made of `name`."""
    row = IntentRow(
        id=f"id-{name}",
        base=f"base-{name}",
        epoch=0,
        identity=f"identity-{name}",
        kind="kind-charge",
        resource=None,
        principal="acct",
        scope="thread-1",
        server="pay",
        tool="charge",
        label=None,
        state=IntentState.IN_FLIGHT,
        open=True,
        generation=0,
        key=f"key-{name}",
        key_pinned=False,
        request='{"amount":1}',
        payload=f"payload-{name}",
        content="",
        created_s=now_s,
    )
    return replace(row, **changes)


def sample_attempt(intent: str, now_s: float, holder: str, **changes: Any) -> AttemptRow:
    """Return the first attempt of `intent`, being sent."""
    row = AttemptRow(
        intent=intent,
        number=1,
        generation=0,
        state=AttemptState.SENDING,
        begun_s=now_s,
        send_before_s=now_s + 5,
        lease_until_s=now_s + 30,
        holder=holder,
        call="call-token",
    )
    return replace(row, **changes)


def put(journal: Journal, *rows: IntentRow) -> None:
    """Insert intents in one step."""

    def work(store: Store) -> None:
        for row in rows:
            store.put_intent(row, new=True)

    journal.run(work)


def bump(identity: str) -> Any:
    """Return a step that moves an identity to its next version, and returns the version it found."""

    def work(store: Store) -> int:
        version = store.version(identity)
        store.swap(identity, version)
        return version

    return work


def crowd(size: int, act: Any) -> None:
    """Run `act(n)` in `size` threads."""
    crew = [threading.Thread(target=act, args=(n,)) for n in range(size)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join(60)
        assert not thread.is_alive()


def until(true: Any, limit_s: float = 20.0) -> None:
    """Wait for what another thread or process does."""
    end_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.005)


def raised(kind: type[Exception], act: Any) -> Exception:
    """Return the error that `act` raises."""
    try:
        act()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def outcome(work: Any, store: Store) -> str:
    """Tell whether a work is raced."""
    try:
        work(store)
    except Raced:
        return "raced"
    return "done"


class RowConformance:
    """The tests of rows. Each opens the journal of an empty folder."""

    def open(self, tmp: Path) -> Journal:
        """Open the journal of this folder, anew or once more."""
        raise NotImplementedError

    # one step

    def test_rows_come_back_as_they_were_put(self, tmp_path: Path) -> None:
        """Every field, with its type: evidence is rebuilt from these rows alone."""
        with closing(self.open(tmp_path)) as journal:
            bare = sample_intent("a", 100.0)
            full = sample_intent(
                "b",
                101.5,
                resource="res",
                label="again",
                key_pinned=True,
                acknowledged=True,
                code=Code.UNVERIFIABLE,
                owner="ops@example.com",
                settled_s=102.25,
                result='{"text":"ü\u2028"}',
                facts={"window_s": 60.0, "nested": {"list": [1, None, "x"]}},
            )
            attempt = sample_attempt(
                full.id, 101.5, journal.holder.name, call_id="harness-1", ended_s=102.0, detail={"class": "http"}
            )

            def work(store: Store) -> None:
                store.put_intent(bare, new=True)
                store.put_intent(full, new=True)
                store.put_attempt(attempt, new=True)

            journal.run(work)
            seen = journal.run(
                lambda s: (s.intent(bare.id), s.intent(full.id), s.attempts(full.id), s.attempts(bare.id))
            )
            assert (bare, full, [attempt], []) == (seen[0], seen[1], list(seen[2]), list(seen[3]))
            assert seen[0] is not None
            assert seen[1] is not None
            assert (True, True, False) == (seen[1].open is True, seen[1].key_pinned is True, seen[0].acknowledged)

    def test_an_update_writes_what_changed(self, tmp_path: Path) -> None:
        """Also twice in one step, and for a row that this step did not read."""
        with closing(self.open(tmp_path)) as journal:
            row = sample_intent("a", 1.0)
            put(journal, row)
            attempt = sample_attempt(row.id, 1.0, journal.holder.name)
            journal.run(lambda s: s.put_attempt(attempt, new=True))
            unread = replace(row, generation=3, facts={"n": 1})
            ended = replace(attempt, state=AttemptState.HAPPENED, ended_s=2.0, detail={"class": "result"})

            def work(store: Store) -> None:
                store.put_intent(unread)
                store.put_intent(replace(unread, state=IntentState.HAPPENED, settled_s=2.0, open=False, facts={}))
                store.put_attempt(ended)

            journal.run(work)
            seen = journal.run(lambda s: (s.intent(row.id), s.attempts(row.id)))
            assert replace(row, generation=3, state=IntentState.HAPPENED, settled_s=2.0, open=False) == seen[0]
            assert [ended] == list(seen[1])

    def test_a_step_that_raises_leaves_nothing(self, tmp_path: Path) -> None:
        """A begin that fails halfway must not leave an intent without its attempt."""
        with closing(self.open(tmp_path)) as journal:

            def work(store: Store) -> None:
                store.swap("identity-a", 0)
                store.put_intent(sample_intent("a", 1.0), new=True)
                store.event("id-a", "guard", "told", "x")
                store.set_meta("note", "x")
                raise KeyError("halfway")

            error = raised(KeyError, lambda: journal.run(work))
            assert "'halfway'" == str(error)
            assert (None, 0, None) == journal.run(lambda s: (s.intent("id-a"), s.version("identity-a"), s.meta("note")))
            assert [] == list(journal.history())

    def test_a_stale_version_is_raced_and_the_step_runs_again(self, tmp_path: Path) -> None:
        """The second of two begins must see the first before it decides."""
        with closing(self.open(tmp_path)) as journal:
            assert 0 == journal.run(bump("i"))
            versions = [0]  # what this caller believed

            def work(store: Store) -> int:
                believed = versions.pop() if versions else store.version("i")
                store.swap("i", believed)
                return believed

            assert 1 == journal.run(work)
            assert 2 == journal.run(lambda s: s.version("i"))

    def test_a_race_lost_for_ever_is_an_error(self, tmp_path: Path) -> None:
        """A step that insists on a stale version must end, and change nothing."""
        with closing(self.open(tmp_path)) as journal:
            for stale in (1, 7):
                raised(JournalError, lambda stale=stale: journal.run(lambda s: s.swap("i", stale)))
            assert 0 == journal.run(lambda s: s.version("i"))

    def test_a_second_insert_is_raced(self, tmp_path: Path) -> None:
        """The same id, the same base and epoch, the same attempt number: each names one row."""
        with closing(self.open(tmp_path)) as journal:
            row = sample_intent("a", 1.0)
            attempt = sample_attempt(row.id, 1.0, journal.holder.name)
            put(journal, row)
            journal.run(lambda s: s.put_attempt(attempt, new=True))
            again = (
                lambda s: s.put_intent(replace(row, base="other"), new=True),
                lambda s: s.put_intent(replace(row, id="other"), new=True),
                lambda s: s.put_attempt(replace(attempt, call="other"), new=True),
            )
            for work in again:
                assert "raced" == journal.run(lambda s, work=work: outcome(work, s))  # type: ignore[misc]
            assert (row, None, [attempt]) == journal.run(
                lambda s: (s.intent(row.id), s.intent("other"), list(s.attempts(row.id)))
            )

    def test_meta_is_kept(self, tmp_path: Path) -> None:
        """Small facts about the journal itself survive it being closed."""
        with closing(self.open(tmp_path)) as journal:
            journal.run(lambda s: (s.set_meta("k", "1"), s.set_meta("k", "2")))
            assert None is journal.run(lambda s: s.meta("never"))
        with closing(self.open(tmp_path)) as journal:
            assert "2" == journal.run(lambda s: s.meta("k"))

    def test_the_history_only_grows(self, tmp_path: Path) -> None:
        """Who, when, what and why are told in order, of one intent or of all."""
        with closing(self.open(tmp_path)) as journal:
            journal.run(lambda s: s.event("id-a", "guard", "held", "no read-back", code="unverifiable"))
            journal.run(lambda s: s.event(None, "person:ann", "journal_new", "disk replaced"))
            before = list(journal.history())
            journal.run(lambda s: s.event("id-a", "person:ann", "resolved", "seen on the bank's page"))
            after = list(journal.history())
            assert before == after[:2]
            assert ["held", "journal_new", "resolved"] == [event.what for event in after]
            assert ["held", "resolved"] == [event.what for event in journal.history("id-a")]
            assert {"code": "unverifiable"} == after[0].data
            assert sorted(event.at_s for event in after) == [event.at_s for event in after]

    # finding rows

    def test_rows_are_found_by_what_they_share(self, tmp_path: Path) -> None:
        """The latest epoch, the open ones of an identity or kind, and the call of a harness."""
        with closing(self.open(tmp_path)) as journal:
            closed = sample_intent("a", 1.0, open=False, state=IntentState.HAPPENED, settled_s=2.0)
            newer = replace(closed, id="id-a1", epoch=1, open=True, state=IntentState.UNKNOWN, settled_s=None)
            sibling = sample_intent("b", 3.0, identity=closed.identity)
            other = sample_intent("c", 4.0, kind="kind-mail")
            put(journal, closed, newer, sibling, other)

            def work(store: Store) -> None:
                for row, number in ((closed, 1), (closed, 2), (newer, 1), (other, 1)):
                    attempt = sample_attempt(row.id, 1.0, journal.holder.name, number=number)
                    store.put_attempt(replace(attempt, call_id=None if row is other else "harness"), new=True)

            journal.run(work)
            with_store = journal.run(
                lambda s: (
                    s.latest(closed.base),
                    s.latest("base-none"),
                    {row.id for row in s.open_of(closed.identity)},
                    {row.id for row in s.open_of_kind("kind-charge")},
                    [attempt.number for attempt in s.attempts(closed.id)],
                    s.by_call("harness"),
                    s.by_call("none"),
                )
            )
            ids = {newer.id, sibling.id}
            assert (newer, None, ids, ids, [1, 2], newer, None) == with_store
            journal.run(lambda s: s.put_intent(replace(sibling, open=False)))
            assert {newer.id} == {row.id for row in journal.run(lambda s: s.open_of(closed.identity))}

    def test_a_later_effect_on_the_resource_is_seen(self, tmp_path: Path) -> None:
        """Only one that happened, later, and under another identity ends the replays of an earlier one."""
        with closing(self.open(tmp_path)) as journal:
            happened = {"state": IntentState.HAPPENED, "open": False, "resource": "prod"}
            put(
                journal,
                sample_intent("a", 1.0, settled_s=10.0, **happened),
                sample_intent("b", 2.0, settled_s=20.0, **happened),
                sample_intent("c", 3.0, settled_s=99.0, **{**happened, "state": IntentState.REFUSED}),
            )
            asked = [("prod", 10.0, "identity-a"), ("prod", 20.0, "identity-a"), ("prod", 5.0, "identity-b")]
            asked += [("prod", 10.0, "identity-b"), ("test", 0.0, "identity-a")]
            seen = journal.run(lambda s: [s.later_on(*question) for question in asked])
            assert [True, False, True, False, False] == seen

    def test_list_filters_and_find_takes_a_prefix(self, tmp_path: Path) -> None:
        """Newest first; each filter alone and together."""
        with closing(self.open(tmp_path)) as journal:
            done = {"state": IntentState.HAPPENED, "open": False, "settled_s": 50.0}
            put(
                journal,
                sample_intent("a", 10.0, **done),
                sample_intent("b", 20.0, scope="thread-2"),
                sample_intent("c", 30.0, state=IntentState.UNKNOWN, code=Code.ABANDONED),
                sample_intent("bb", 40.0, **{**done, "state": IntentState.REFUSED}),
            )
            for expected, options in (
                ("bb c b a", {}),
                ("bb c", {"limit": 2}),
                ("", {"limit": 0}),
                ("bb c a", {"scope": "thread-1"}),
                ("bb a", {"states": [IntentState.HAPPENED, IntentState.REFUSED]}),
                ("", {"states": []}),
                ("c", {"held": True}),
                ("bb b a", {"held": False}),
                ("c b", {"unsettled": True}),
                ("bb a", {"unsettled": False}),
                ("bb c", {"since_s": 30.0}),
                ("c", {"scope": "thread-1", "unsettled": True, "since_s": 10.0, "limit": 5}),
            ):
                listed = journal.list(**options)
                assert expected.split() == [row.id.removeprefix("id-") for row in listed], options
            assert {"id-b", "id-bb"} == {row.id for row in journal.find("id-b")}
            assert [] == list(journal.find("id-%"))

    def test_a_list_is_read_to_its_end(self, tmp_path: Path) -> None:
        """Also past one page, and while others write."""
        with closing(self.open(tmp_path)) as journal:
            put(journal, *(sample_intent(f"{n:04}", float(n)) for n in range(1_000)))
            listing = journal.list()
            first = next(listing)
            put(journal, sample_intent("late", 2_000.0))
            assert [f"id-{n:04}" for n in reversed(range(1_000))] == [first.id, *(row.id for row in listing)]
