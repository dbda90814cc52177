"""Reports of an effect that comes long after the caller, or its layer, has given up on it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceward import receipts
from onceward.errors import Conflict, Held, Unknown
from onceward.evidence import Code

PUBLISH = """
publish:
  effect: write
  identity: [channel]
  content: [text]
  in_flight: 1s
  read_back:
    tool: list_posts
    arguments: {channel: channel}
    items: items
    match: {channel: channel}
    created: created
    lag: 0.1s
list_posts: {effect: read}
"""
WORKFLOW = """
start_workflow:
  effect: write
  identity: [order]
  progress:
    tool: get_workflow
    arguments: {order: arguments.order}
    path: items[0].status || 'pending'
    pending: [pending]
    done: [done]
    failed: [failed]
    accepted_when: {status: started}
get_workflow: {effect: read}
"""
TEXT = "Our new release is out, with faster exports and fewer clicks."


def test_br017_a_post_that_appears_after_the_time_out_is_waited_for_not_replayed(shop: Any, guard_of: Any) -> None:
    """Publishing takes far longer than the client waits. The read at once shows nothing; the read at due shows it.

    https://github.com/zernio-dev/zernio-python/pull/42
    """
    guard = guard_of(PUBLISH)
    shop.lose(late_s=0.7)
    guard.call("publish", {"channel": "news", "text": TEXT})
    assert len(shop.effects) == len(shop.requests) == 1
    assert shop.reads == 2


def test_br017_one_more_full_stop_is_not_another_post(shop: Any, guard_of: Any) -> None:
    """Told "unknown", or "duplicate content", somebody changes one character and publishes again.

    https://github.com/zernio-dev/zernio-python/pull/42
    """
    guard = guard_of(PUBLISH, patience_s=0.1)
    shop.lose(late_s=0.4)
    with pytest.raises(Unknown) as first:
        guard.call("publish", {"channel": "news", "text": TEXT})
    with pytest.raises(Unknown) as again:
        guard.call("publish", {"channel": "news", "text": TEXT + "."})
    assert first.value.intent == again.value.intent
    guard.patience_s = 5.0
    with pytest.raises(Conflict) as settled:
        guard.call("publish", {"channel": "news", "text": TEXT + "."})
    assert settled.value.code is Code.ALREADY_HAPPENED
    assert "publish happened at" in settled.value.told
    assert [TEXT] == [effect["text"] for effect in shop.effects]


def test_br017_after_a_heard_answer_nearly_the_same_text_is_asked_about_once(shop: Any, guard_of: Any) -> None:
    """The post stands and its caller knows. The reworded one is questioned, and sent if the caller insists.

    https://github.com/zernio-dev/zernio-python/pull/42
    """
    guard = guard_of(PUBLISH)
    guard.call("publish", {"channel": "news", "text": TEXT})
    with pytest.raises(Conflict) as asked:
        guard.call("publish", {"channel": "news", "text": TEXT + "."})
    assert asked.value.code is Code.CONTENT_DIFFERS
    assert len(shop.effects) == 1
    guard.call("publish", {"channel": "news", "text": TEXT + "."})
    assert len(shop.effects) == 2
    newest = receipts.intents(guard.journal)[0]
    assert asked.value.intent is not None
    assert [f"repeat_of {asked.value.intent[:12]}"] == newest["notes"]


def test_br017_a_duplicate_content_409_is_a_reason_to_look(shop: Any, guard_of: Any) -> None:
    """A retry below the guard was answered 409: somebody's post exists. The list says that it is ours.

    https://github.com/zernio-dev/zernio-python/pull/42
    """
    guard = guard_of(PUBLISH)
    shop.lose(shop.HttpError(409, "duplicate content"))
    guard.call("publish", {"channel": "news", "text": TEXT})
    assert len(shop.effects) == len(shop.requests) == 1
    assert shop.reads == 1


def test_br019_a_client_that_posts_again_finds_the_workflow_it_started(shop: Any, harness_of: Any, block: Any) -> None:
    """A webhook starts a long workflow and says so; the client gives up waiting for the end, and posts again.

    https://github.com/open-condo-software/condo/pull/7773
    """
    shop.plan(shop.Plan(answer={"status": "started"}))

    async def play() -> list[Any]:
        harness = harness_of(WORKFLOW, patience_s=0.3)
        answers = [await harness.call("start_workflow", {"order": "o-1"}) for _ in range(2)]
        shop.older.append({"order": "o-1", "status": "done"})
        harness.gate._patience_s = 5.0
        return [*answers, await harness.call("start_workflow", {"order": "o-1"})]

    *waiting, done = asyncio.run(play())
    assert len(shop.effects) == len(shop.requests) == 1
    assert [("accepted", "accepted")] * 2 == [(block(a)["state"], block(a)["code"]) for a in waiting]
    assert "accepted, not done" in waiting[0]["result"]["content"][0]["text"]
    assert "happened" == block(done)["state"]


def test_br019_a_time_out_without_any_sign_starts_no_second_workflow(shop: Any, guard_of: Any, insist: Any) -> None:
    """The same where the service says nothing until the end: the client times out, and posts again.

    https://github.com/open-condo-software/condo/pull/7773
    """
    guard = guard_of("start_workflow: {effect: write, identity: [order], in_flight: 10m}")
    shop.lose(late_s=0.3)
    answers = insist(2, lambda: guard.call("start_workflow", {"order": "o-1"}))
    assert len(shop.effects) == len(shop.requests) == 1
    assert [(Held, Code.UNVERIFIABLE)] * 2 == [(type(a), a.code) for a in answers]


def test_br020_another_worker_waits_for_a_tool_that_still_runs(shop: Any, guard_of: Any) -> None:
    """The step's lease ran out in the workflow engine, not in the journal: worker B joins what worker A still runs.

    https://github.com/langchain-ai/langgraph/issues/7417
    """
    worker_a, worker_b = guard_of(PUBLISH), guard_of(PUBLISH)
    shop.plan(shop.Plan(takes_s=0.5, late_s=0.4))
    post = {"channel": "news", "text": TEXT}

    async def play() -> list[Any]:
        first = asyncio.ensure_future(worker_a.acall("publish", post, shop.arequest("publish")))
        await asyncio.sleep(0.1)
        return [await worker_b.acall("publish", post, shop.arequest("publish")), await first]

    restarted, original = asyncio.run(play())
    assert len(shop.effects) == len(shop.requests) == 1
    assert original == restarted == {"done": 1, "tool": "publish"}


def test_br022_a_step_that_never_started_may_be_tried_again(shop: Any, guard_of: Any) -> None:
    """World one: nothing left this machine, and the caller is told just that.

    https://github.com/gitroomhq/postiz-app/pull/2013
    """
    guard = guard_of("publish: {effect: write, identity: [channel], content: [text]}")
    never = RuntimeError("the activity was never scheduled")
    never.onceward_not_sent = True  # type: ignore[attr-defined]  # how a function says that it sent nothing
    shop.lose(never, effect=False)
    with pytest.raises(RuntimeError, match="never scheduled"):
        guard.call("publish", {"channel": "news", "text": TEXT})
    guard.call("publish", {"channel": "news", "text": TEXT})
    assert len(shop.effects) == 1


def test_br022_a_step_that_started_and_stalled_is_unknown_and_is_not_tried_again(
    shop: Any, guard_of: Any, insist: Any
) -> None:
    """World two: it had begun when its heartbeat stopped.

    https://github.com/gitroomhq/postiz-app/pull/2013
    """
    guard = guard_of("publish: {effect: write, identity: [channel], content: [text]}")
    shop.lose(RuntimeError("heartbeat time-out after 'entered'"), late_s=0.2)
    answers = insist(3, lambda: guard.call("publish", {"channel": "news", "text": TEXT}))
    assert len(shop.effects) == len(shop.requests) == 1
    assert [(Held, "unknown")] * 3 == [(type(a), a.data["state"]) for a in answers]


def test_br022_the_late_answer_of_a_stalled_step_settles_it(shop: Any, guard_of: Any) -> None:
    """The stalled attempt answers after its time-out: that is evidence, and the next call hears it.

    https://github.com/gitroomhq/postiz-app/pull/2013
    """
    guard = guard_of("publish: {effect: write, identity: [channel], content: [text]}", attempt_timeout_s=0.2)
    shop.plan(shop.Plan(takes_s=0.5))
    post = {"channel": "news", "text": TEXT}

    async def play() -> Any:
        with pytest.raises(Held):
            await guard.acall("publish", post, shop.arequest("publish"))
        while next(iter(guard.journal.list())).code is not None:
            await asyncio.sleep(0.02)
        return await guard.acall("publish", post, shop.arequest("publish"))

    assert {"done": 1, "tool": "publish"} == asyncio.run(play())
    assert len(shop.effects) == len(shop.requests) == 1
