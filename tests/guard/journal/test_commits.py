"""The group commit without a database: who leads, and that somebody always does."""

from __future__ import annotations

import asyncio
from typing import Any

from onceward.journal.commits import GroupCommit


def commits() -> GroupCommit:
    return GroupCommit(lambda works: [work(None) for work in works], beat=lambda: False, beat_s=10.0)  # type: ignore[arg-type]


def test_a_lead_that_is_promised_to_the_background_thread_can_be_taken():
    """The background thread may be inside a tick of its own, waiting for a leader, when the lead is promised to it."""
    group = commits()

    async def play() -> Any:
        ring, rung = group._ring, []
        group._ring = rung.append  # type: ignore[method-assign]  # the bell has not reached the background thread yet
        step = asyncio.ensure_future(group.run_async(lambda store: "async"))
        await asyncio.sleep(0)
        group.later(lambda store: "note")
        ticked = asyncio.get_running_loop().run_in_executor(None, group._tick, "note", {})
        answers = await asyncio.wait_for(asyncio.gather(step, ticked), 10)
        for why in rung:
            ring(why)
        return answers[0]

    assert "async" == asyncio.run(play())
    group.stop()


def test_a_bell_for_a_lead_that_was_taken_leads_nobody():
    """Two leaders at once would share a connection."""
    group = commits()

    async def play() -> list[Any]:
        first = await group.run_async(lambda store: 1)
        group._ring("lead")
        return [first, await group.run_async(lambda store: 2), group.run(lambda store: 3)]

    assert [1, 2, 3] == asyncio.run(play())
    group.stop()
