"""What the model is told: every sentence in one snapshot, and the rules that no sentence may break.

To write the snapshot anew after a change of wording: ONCEWARD_WRITE_SNAPSHOTS=1 pytest tests/guard/test_texts.py
"""

import json
import os
import re
from itertools import product
from math import inf
from pathlib import Path

import jsonschema
import pytest

from onceward import texts
from onceward.errors import Stopped
from onceward.evidence import HOLD_CODES, Act, Code, Decision, IntentState
from onceward.texts import BLOCK, Told, mark_replay, mcp_result, tell

SNAPSHOT = Path(__file__).with_name("texts.snap.md")
CODES_PAGE = Path(__file__).parents[2] / "docs" / "codes.md"

NOW = 1_796_090_585.25  # 2026-12-01 02:03:05Z and a quarter
INTENT, OTHER = "0123456789abcdef" * 4, "fedcba9876543210" * 4
ANSWERING = (Act.REPLAY, Act.TELL, Act.CONFLICT, Act.ANSWER, Act.HOLD)
SENT = frozenset({IntentState.IN_FLIGHT, IntentState.ACCEPTED, IntentState.UNKNOWN})


def say(act, code, state, **more):
    """Tell one decision with plausible values; `until_s` and `owner` go to the decision."""
    held = act is Act.HOLD
    decision = Decision(
        act=act,
        code=code,
        owner=more.pop("owner", "ops@example.com" if held else None),
        until_s=more.pop("until_s", None),
        other=more.pop("other", None),
        permanent=held,
    )
    values = {"tool": "charge_card", "intent": INTENT, "now_s": NOW, "state": state}
    if state in SENT:
        values["since_s"] = NOW - 61
    if state is IntentState.HAPPENED:
        values["happened_s"] = NOW - 60
    return tell(decision, **(values | more))


def cases():
    """Yield (title, told) for everything that can be told."""
    state = IntentState
    original = '{"customer": "cust_42", "amount": 100}'
    for code in sorted(HOLD_CODES - {Code.NEEDS_APPROVAL}, key=lambda c: c.value):
        yield f"hold {code.value}, unknown", say(Act.HOLD, code, state.UNKNOWN)
    yield "hold needs_approval, new", say(Act.HOLD, Code.NEEDS_APPROVAL, state.NEW, intent=None)
    yield "hold read_back_inconclusive, new", say(Act.HOLD, Code.READ_BACK_INCONCLUSIVE, state.NEW)
    yield "hold error_cached, refused", say(Act.HOLD, Code.ERROR_CACHED, state.REFUSED)
    yield "hold error_cached, absent", say(Act.HOLD, Code.ERROR_CACHED, state.ABSENT)
    yield "hold unverifiable, in flight", say(Act.HOLD, Code.UNVERIFIABLE, state.IN_FLIGHT)
    yield "hold unverifiable, accepted", say(Act.HOLD, Code.UNVERIFIABLE, state.ACCEPTED)
    yield "hold unverifiable, foreign", say(Act.HOLD, Code.UNVERIFIABLE, state.UNKNOWN, foreign=True)
    yield (
        "hold unverifiable, since unknown, no owner",
        say(Act.HOLD, Code.UNVERIFIABLE, state.UNKNOWN, since_s=None, owner=None),
    )
    yield "answer retry_ceiling, absent", say(Act.ANSWER, Code.RETRY_CEILING, state.ABSENT)
    yield "answer retry_ceiling, refused", say(Act.ANSWER, Code.RETRY_CEILING, state.REFUSED, refusal="card declined")
    for code in (Code.TERMS_CHANGED, Code.UNSETTLED_SIBLING, Code.SIMILAR_UNSETTLED):
        yield (
            f"conflict {code.value}, unknown",
            say(Act.CONFLICT, code, state.UNKNOWN, until_s=NOW + 60, original=original),
        )
        yield f"conflict {code.value}, in flight, other", say(Act.CONFLICT, code, state.IN_FLIGHT, other=OTHER)
    yield "conflict terms_changed, accepted", say(Act.CONFLICT, Code.TERMS_CHANGED, state.ACCEPTED)
    yield (
        "conflict similar_unsettled, happened",
        say(Act.CONFLICT, Code.SIMILAR_UNSETTLED, state.HAPPENED, foreign=True),
    )
    yield "conflict key_reused", say(Act.CONFLICT, Code.KEY_REUSED, state.HAPPENED, original=original)
    yield "conflict content_differs", say(Act.CONFLICT, Code.CONTENT_DIFFERS, state.HAPPENED, original=original)
    yield "conflict no_contract", say(Act.CONFLICT, Code.NO_CONTRACT, state.UNKNOWN, until_s=NOW + 900)
    yield "conflict no_contract, other", say(Act.CONFLICT, Code.NO_CONTRACT, state.UNKNOWN, other=OTHER, foreign=True)
    yield "conflict found_before_send", say(Act.CONFLICT, Code.FOUND_BEFORE_SEND, state.NEW)
    yield "tell already_happened", say(Act.TELL, Code.ALREADY_HAPPENED, state.HAPPENED, original=original)
    yield (
        "tell already_happened, foreign",
        say(Act.TELL, Code.ALREADY_HAPPENED, state.HAPPENED, other=OTHER, foreign=True),
    )
    yield (
        "answer already_happened, time unknown",
        say(Act.ANSWER, Code.ALREADY_HAPPENED, state.HAPPENED, happened_s=None),
    )
    yield "answer running", say(Act.ANSWER, Code.RUNNING, state.IN_FLIGHT, owner="ops@example.com")
    yield "answer running, foreign", say(Act.ANSWER, Code.RUNNING, state.IN_FLIGHT, foreign=True, until_s=NOW + 60)
    yield "answer accepted", say(Act.ANSWER, Code.ACCEPTED, state.ACCEPTED, until_s=NOW + 60)
    yield "answer refused", say(Act.ANSWER, Code.REFUSED, state.REFUSED, refusal="  card\n declined ")
    yield "answer refused, absent", say(Act.ANSWER, Code.REFUSED, state.ABSENT)
    yield "answer refused, new, too early", say(Act.ANSWER, Code.REFUSED, state.NEW, until_s=NOW + 30)
    yield "answer unknown", say(Act.ANSWER, Code.UNKNOWN, state.UNKNOWN)
    yield (
        "answer unknown, until",
        say(Act.ANSWER, Code.UNKNOWN, state.UNKNOWN, until_s=NOW + 60, owner="ops@example.com"),
    )
    yield (
        "answer unknown, no intent",
        say(Act.ANSWER, Code.UNKNOWN, state.UNKNOWN, intent=None, owner="ops@example.com"),
    )
    yield "answer unknown, hermes", say(Act.ANSWER, Code.UNKNOWN, state.UNKNOWN, profile="hermes")
    for code in (Code.NO_SCOPE, Code.JOURNAL_MISSING, Code.CONTRACT_MISMATCH):
        yield f"answer {code.value}", say(Act.ANSWER, code, state.NEW, intent=None, owner="ops@example.com")
    yield "answer journal_unavailable, new", say(Act.ANSWER, Code.JOURNAL_UNAVAILABLE, state.NEW, refusal="disk full")
    yield "answer journal_unavailable, unknown", say(Act.ANSWER, Code.JOURNAL_UNAVAILABLE, state.UNKNOWN)
    yield (
        "answer bad_arguments",
        say(Act.ANSWER, Code.BAD_ARGUMENTS, state.NEW, intent=None, refusal="arguments at $.amount: NaN"),
    )
    yield "replay", say(Act.REPLAY, None, state.HAPPENED)
    yield "notice replayed, time unknown", texts.replayed("charge_card", intent=INTENT, happened_s=None)
    yield "notice found", texts.found("charge_card", intent=INTENT, happened_s=NOW)
    yield "notice found, by a person", texts.found("charge_card", intent=INTENT, happened_s=NOW, by_person=True)
    yield "notice reissued_original", texts.reissued_original("send_mail", intent=INTENT)
    yield "notice reissued_original, shown", texts.reissued_original("send_mail", intent=INTENT, original="x" * 400)
    yield "notice duplicated", texts.duplicated("charge_card", intent=INTENT, count=2, owner="ops@example.com")
    yield "notice straggler", texts.straggler("set_plan", intent=INTENT)
    yield "notice repeat_of", texts.repeat_of("send_mail", intent=INTENT, earlier=OTHER, happened_s=NOW - 3600)


def everything():
    """Yield a text for every answering act, code and state, the impossible ones too."""
    for act, code, state in product(ANSWERING[1:], Code, IntentState):
        for foreign, until_s in ((False, None), (True, NOW + 60), (False, inf)):
            yield act, code, state, say(act, code, state, foreign=foreign, until_s=until_s, original="{}")


def test_every_sentence_is_in_the_snapshot():
    """A change of wording changes what models do: it must be seen in review, byte for byte."""
    now = "".join(f"## {title}\n\n{told.text}\n\n```json\n{json.dumps(told.data)}\n```\n\n" for title, told in cases())
    now = f"# What the model is told\n\n{now}"
    if os.environ.get("ONCEWARD_WRITE_SNAPSHOTS"):
        SNAPSHOT.write_bytes(now.encode())
    assert SNAPSHOT.read_bytes().decode() == now


def test_the_snapshot_leaves_no_sentence_out():
    """A sentence that only some path says would change unseen."""
    said = SNAPSHOT.read_text(encoding="utf-8")
    tables = (texts._HELD, texts._DECIDE, texts._NOT_READY, texts._DIFFERS)
    assert [] == [sentence for table in tables for sentence in table.values() if sentence not in said]
    standings = [texts._standing("charge_card", state, NOW - 60, NOW - 61) for state in IntentState]
    assert [] == [sentence for sentence in standings if sentence not in said]


def test_every_code_and_act_can_be_told():
    """A code without words would break a call in the very moment of doubt."""
    told = {(act, code) for act, code, _, _ in everything()}
    assert set(product(ANSWERING[1:], Code)) == told
    assert {code.value for code in Code} <= {t.data["code"] for _, t in cases()}


@pytest.mark.parametrize("act", sorted(set(Act) - set(ANSWERING), key=lambda a: a.value))
def test_an_act_that_goes_on_cannot_be_told(act):
    """Telling it would end a call that still has something to do."""
    with pytest.raises(ValueError, match="is no answer"):
        tell(Decision(act=act), tool="t", intent=None, state=IntentState.NEW, now_s=NOW)


@pytest.mark.parametrize("act", ANSWERING[1:])
def test_an_answer_needs_a_code(act):
    """Without one there is nothing to say, and no page to read."""
    with pytest.raises(ValueError, match="needs a code"):
        tell(Decision(act=act), tool="t", intent=None, state=IntentState.NEW, now_s=NOW)


PROMISES = re.compile(
    r"verif|check|\bretr(y|ies|ied)|try (it )?again|\bwill\b|\bwe\b|\bI\b|\b(I|we)'|automatic|make sure|reconcil"
    r"|confirm|follow up|\bsoon\b|in the background|once known|let you know|look into",
    re.IGNORECASE,
)


def test_no_text_promises_anything():
    """A promise to look again makes a model drop its own caution: in a study duplicates rose from 50 to 71 percent."""
    assert [] == [title for title, told in cases() if PROMISES.search(told.text)]
    assert [] == [(act, code, state) for act, code, state, told in everything() if PROMISES.search(told.text)]


def test_every_doubt_says_what_not_to_do_whom_to_tell_and_where_it_is_tracked():
    """These are the parts that kept models from doing it again."""
    for act, code, state, told in everything():
        assert "the user" in told.text
        assert told.data["intent"][:12] in told.text
        assert told.data["intent"][:13] not in told.text
        decides = code in texts._DECIDE or code is Code.REFUSED  # the caller's own choice, or nothing to fear
        assert decides or state not in SENT or "Do not repeat it" in told.text
        if act is Act.HOLD:
            assert "ops@example.com" in told.text


def test_nothing_is_called_certain_while_it_is_not():
    """The same code can end a call whose attempt is settled and one whose attempt is not."""
    assert [] == [(a, c, s) for a, c, s, told in everything() if s in SENT and "Nothing is uncertain" in told.text]


def test_what_was_sent_is_never_called_unsent():
    """The record may fail after the request left: the text must not say that nothing did."""
    said = [(c, s) for _, c, s, told in everything() if s in SENT and "charge_card was not sent" in told.text]
    assert {Code.FOUND_BEFORE_SEND} == {code for code, _ in said}  # found before the first sending, by its meaning


def test_a_conflict_says_how_to_decide():
    """The guard cannot tell a retry from a second action; the caller can, and must know the two ways to say it."""
    for code in (Code.TERMS_CHANGED, Code.UNSETTLED_SIBLING, Code.SIMILAR_UNSETTLED):
        text = say(Act.CONFLICT, code, IntentState.UNKNOWN).text
        assert "repeat its arguments exactly" in text
        assert "`onceward_label`" in text


def test_a_running_call_is_running_and_not_unknown():
    """A caller that hears "unknown" of a call that still runs goes looking for other ways."""
    told = say(Act.ANSWER, Code.RUNNING, IntentState.IN_FLIGHT)
    assert "has been running since 2026-12-01 02:02:04Z and was not repeated" in told.text
    assert "unknown" not in told.text


def test_another_run_is_told_of_the_fact_alone():
    """It must not take the other one's effect for its own."""
    told = say(Act.TELL, Code.ALREADY_HAPPENED, IntentState.HAPPENED, other=OTHER, foreign=True)
    assert told.error
    assert OTHER == told.data["intent"]
    assert "another run" in told.text


def test_long_and_broken_texts_are_shortened():
    """A refusal of a megabyte must not flood a context, and its line breaks must not look like ours."""
    told = say(Act.ANSWER, Code.REFUSED, IntentState.REFUSED, refusal="no\n" * 100_000)
    assert len(told.text) < 1_000
    assert "\n" not in told.text


def test_the_block_has_the_same_keys_everywhere():
    """Programs read it: the library raises from it, consoles link by it."""
    keys = {"intent", "state", "code", "permanent", "owner", "not_before"}
    for _, told in cases():
        assert keys == set(told.data) - {"not_before_text", "notices"}
        json.dumps(told.data, allow_nan=False)
    error = Stopped(*(lambda t: (t.text, t.data))(say(Act.ANSWER, Code.UNKNOWN, IntentState.UNKNOWN, until_s=NOW + 60)))
    assert (Code.UNKNOWN, NOW + 60, INTENT) == (error.code, error.until_s, error.intent)


def test_a_time_that_is_over_or_endless_is_not_named():
    """Only a future time tells the reader anything, and infinity is no JSON."""
    for until_s in (NOW - 1, NOW, inf, None):
        data = say(Act.ANSWER, Code.UNKNOWN, IntentState.UNKNOWN, until_s=until_s).data
        assert data["not_before"] is None
        assert "not_before_text" not in data


def test_a_bound_is_rounded_up_and_an_event_down():
    """Rounding must never name a moment at which it is still too early."""
    told = say(Act.ANSWER, Code.UNKNOWN, IntentState.UNKNOWN, since_s=NOW, until_s=NOW + 60)
    assert "2026-12-01 02:04:06Z" == told.data["not_before_text"]
    assert "sent at 2026-12-01 02:03:05Z" in told.text


# --- MCP results

UNKNOWN_TOLD = say(Act.ANSWER, Code.UNKNOWN, IntentState.UNKNOWN)
ACCEPTED_TOLD = say(Act.ANSWER, Code.ACCEPTED, IntentState.ACCEPTED)


def test_a_result_says_it_in_every_place():
    """Some clients show only the content, some only the structured content."""
    result = mcp_result(UNKNOWN_TOLD, output_schema=False)
    assert [{"type": "text", "text": UNKNOWN_TOLD.text}] == result["content"]
    assert {"message": UNKNOWN_TOLD.text, BLOCK: UNKNOWN_TOLD.data} == result["structuredContent"]
    assert {BLOCK: UNKNOWN_TOLD.data} == result["_meta"]
    assert result["isError"] is True


@pytest.mark.parametrize("told", [UNKNOWN_TOLD, ACCEPTED_TOLD])
@pytest.mark.parametrize("profile", ["default", "hermes"])
def test_a_tool_with_a_schema_gets_an_error_without_structured_content(told, profile):
    """Clients reject a success whose content does not conform, and one SDK validates that of errors as well."""
    result = mcp_result(told, output_schema=True, profile=profile)
    assert result["isError"] is True
    assert "structuredContent" not in result
    assert told.text == result["content"][0]["text"]
    assert told.data == result["_meta"][BLOCK]


def test_a_client_that_closes_servers_after_errors_gets_none():
    """Three refusals in a row would cost it the whole tool server; the text then says that it is no answer."""
    told = say(Act.ANSWER, Code.UNKNOWN, IntentState.UNKNOWN, profile="hermes")
    assert mcp_result(told, output_schema=False, profile="hermes")["isError"] is False
    assert told.text.startswith("This is no answer of the tool.")


def test_an_acceptance_is_not_an_error_and_the_caller_may_overrule():
    """The service took it: marking that as failed invites another try."""
    assert mcp_result(ACCEPTED_TOLD, output_schema=False)["isError"] is False
    assert mcp_result(ACCEPTED_TOLD, output_schema=False, is_error=True)["isError"] is True
    assert mcp_result(UNKNOWN_TOLD, output_schema=False, is_error=False)["isError"] is False


def test_a_replay_keeps_the_answer_and_says_when_it_happened():
    """The structured content must still conform to the tool's schema; every other field stays."""
    stored = {
        "content": [{"type": "text", "text": '{"id": "ch_1"}'}],
        "structuredContent": {"id": "ch_1"},
        "_meta": {"vendor/trace": "t"},
        "vendorField": 1,
        "isError": False,
    }
    before = json.dumps(stored)
    told = say(Act.REPLAY, None, IntentState.HAPPENED)
    result = mark_replay(stored, told)
    jsonschema.validate(
        result["structuredContent"], {"type": "object", "additionalProperties": False, "properties": {"id": {}}}
    )
    assert [told.text, '{"id": "ch_1"}'] == [item["text"] for item in result["content"]]
    assert {"vendor/trace": "t", BLOCK: told.data} == result["_meta"]
    assert (1, False) == (result["vendorField"], result["isError"])
    assert before == json.dumps(stored)
    assert "Nothing was sent now: charge_card happened at 2026-12-01 02:02:05Z." in told.text


def test_a_result_carries_several_notices():
    """An effect can be a repeat, and be followed by a straggler."""
    first = texts.repeat_of("set_plan", intent=INTENT, earlier=OTHER, happened_s=NOW)
    second = texts.straggler("set_plan", intent=INTENT)
    result = mark_replay({}, first, second)
    assert [first.text, second.text] == [item["text"] for item in result["content"]]
    assert ["repeat_of", "straggler"] == result["_meta"][BLOCK]["notices"]


def test_notices_are_no_errors():
    """They come with a success."""
    notices = [told for title, told in cases() if title.startswith(("notice", "replay"))]
    assert all(isinstance(told, Told) and not told.error for told in notices)
    assert len(notices) >= 5


# --- the page


def test_every_code_has_a_section():
    """Whoever meets a code must find what happened, what is known and what to do."""
    page = CODES_PAGE.read_text(encoding="utf-8")
    sections = re.split(r"^### `?(\w+)`?$", page, flags=re.MULTILINE)[1:]
    found = dict(zip(sections[::2], sections[1::2], strict=True))
    assert {code.value for code in Code} == set(found)
    wanted = ("**Happened:**", "**Known:**", "**Sent:**", "**Caller:**", "**Operator:**")
    assert [] == [(code, part) for code, text in found.items() for part in wanted if part not in text]
