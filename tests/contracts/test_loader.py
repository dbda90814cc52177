"""The loader: every problem with file, line, field and remedy."""

from pathlib import Path

import pytest

from onceward.contracts import ContractFileError, load, load_many, parse
from onceward.errors import ContractError
from onceward.evidence import Effect

GOOD = """\
version: 1
server: payments
owner: dana@example.com
principal: acme
tools:
  list_charges: {effect: read}
  charge:
    effect: write
    identity: [customer, invoice]
    read_back:
      tool: list_charges
      arguments: {customer: customer}
      match: {invoice: invoice}
    cases:
      - when: {country: NO, zip: 010, day: 2026-12-01, fast: true}
        attempts: 1
"""


def problems(text: str) -> list[ContractError]:
    with pytest.raises(ContractFileError) as caught:
        parse(text, file="pay.yaml")
    return list(caught.value.problems)


def only(text: str) -> tuple[int | None, str | None, str, str]:
    found = problems(text)
    assert 1 == len(found), [str(problem) for problem in found]
    problem = found[0]
    assert "pay.yaml" == problem.file
    return problem.line, problem.field, problem.problem, problem.remedy


def test_a_good_file_is_read(tmp_path: Path):
    """The file's own name and lines stay with it, for lint and for people."""
    path = tmp_path / "payments.yaml"
    path.write_text(GOOD)
    contracts = load(path)
    assert ("payments", "dana@example.com", "acme") == (contracts.server, contracts.owner, contracts.principal)
    assert str(path) == contracts.file
    assert (8, 9, 7) == (
        contracts.line("tools", "charge", "effect"),
        contracts.line("tools", "charge", "identity"),
        contracts.line("tools", "charge", "key", "in"),
    )
    assert Effect.READ is contracts.tools["list_charges"].effect


def test_json_is_read_too_and_means_the_same(tmp_path: Path):
    """Tabs and all: editors indent JSON with them."""
    path = tmp_path / "payments.json"
    path.write_text(
        '{\n\t"version": 1,\n\t"server": "payments",\n\t"owner": "d",\n\t"tools": {"go": {"effect": "write"}}\n}\n'
    )
    assert Effect.WRITE is load(path).tools["go"].effect
    path.write_text(
        '{\n\t"version": 1,\n\t"server": "payments",\n\t"owner": "d",\n\t"tools": {"go": {"efect": "write"}}\n}\n'
    )
    with pytest.raises(ContractFileError) as caught:
        load(path)
    assert {5} == {problem.line for problem in caught.value.problems}


def test_words_that_readers_of_yaml_disagree_on_are_texts():
    """NO is a country, 010 a postal code, and a date is not a moment."""
    contract = parse(GOOD).tools["charge"]
    arguments = {"country": "NO", "zip": "010", "day": "2026-12-01", "fast": True}
    assert 1 == contract.for_arguments(arguments).attempts
    assert 3 == contract.for_arguments(arguments | {"country": False}).attempts
    assert "12" == parse(GOOD.replace("principal: acme", "principal: !!str 12")).principal


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "problem", "remedy"),
    [
        ("effect: write", "effect: wirte", 8, "effect", "`wirte` is not an effect", "did you mean `write`?"),
        (
            "effect: write",
            "effect: 7",
            8,
            "effect",
            "`7` is not an effect",
            "write one of read, idempotent, write, unsafe",
        ),
        ("    identity:", "    identiy:", 9, "identiy", "unknown field `identiy`", "did you mean `identity`?"),
        (
            "match: {",
            "matches: {x: y}\n      match: {",
            13,
            "read_back.matches",
            "unknown field `matches`",
            "mean `match`?",
        ),
        ("[customer, invoice]", "customer", 9, "identity", "expected a list", "write [one, two]"),
        (
            "[customer, invoice]",
            "\n      - customer\n      - in voice",
            11,
            "identity.1",
            "`in voice` is not a path to an argument",
            "write dotted names, [] after a list: customer.id, items[].sku",
        ),
        (
            "{invoice: invoice}",
            '{invoice: "invoice["}',
            13,
            "read_back.match.invoice",
            "`invoice[` is not JMESPath",
            "",
        ),
        ("{invoice: invoice}", '{"a[": invoice}', 13, "read_back.match.a[", "`a[` is not JMESPath", ""),
        (
            "{customer: customer}",
            "{limit: 100}",
            12,
            "read_back.arguments.limit",
            "100 is not a JMESPath",
            "write '`100`'",
        ),
        ("attempts: 1", "atempts: 1", 16, "cases.0.atempts", "unknown field `atempts`", "did you mean `attempts`?"),
        ("attempts: 1", "attempts: one", 16, "cases.0.attempts", "expected a whole number", "write a whole number"),
        ("attempts: 1", "key: {in: 'meta:k', retention: 1 day}", 16, "cases.0.key.retention", "not a duration", "24h"),
        ("attempts: 1", "key: {}", 16, "cases.0.key.in", "is missing", "write argument:NAME, meta:NAME"),
        (
            "attempts: 1",
            "key: {in: 'meta:k', caller: pas}",
            16,
            "cases.0.key.caller",
            "`pas` is not known",
            "mean `pass`?",
        ),
        ("attempts: 1", "once: sometimes", 16, "cases.0.once", "`sometimes` is not known", "one of scope, window"),
        ("attempts: 1", "batch: yes", 16, "cases.0.batch", "expected a mapping", "write `name: value` below it"),
        (
            "attempts: 1",
            "key: {in: 'meta:k', resumes_batch: yes}",
            16,
            "cases.0.key.resumes_batch",
            "true or false",
            "",
        ),
        (
            "tool: list_charges",
            "tool: list_charge",
            11,
            "read_back.tool",
            "there is no tool `list_charge` in this file",
            "did you mean `list_charges`? Else add it under `tools` with `effect: read`",
        ),
        (
            "tool: list_charges",
            "tool: charge",
            11,
            "read_back.tool",
            "`charge` does not only read",
            "name a reading tool",
        ),
        ("attempts: 1", "undo: refund", 16, "cases.0.undo", "there is no tool `refund`", "with `effect: write`"),
        ("attempts: 1", "undo: list_charges", 16, "cases.0.undo", "only reads and can undo nothing", "another tool"),
        (
            "attempts: 1",
            "progress: {tool: status, path: s, done: [ok]}",
            16,
            "cases.0.progress.tool",
            "there is no tool `status`",
            "add it under `tools` with `effect: read`",
        ),
    ],
)
def test_a_fault_is_told_with_line_field_and_remedy(
    old: str, new: str, line: int, field: str, problem: str, remedy: str
):
    """An operator corrects the file without reading our source."""
    found = only(GOOD.replace(old, new, 1))
    assert (line, f"tools.charge.{field}") == found[:2]
    assert problem in found[2]
    assert remedy in found[3]


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "problem", "remedy"),
    [
        ("version: 1", "version: 2", 1, "version", "`2` is not known here", "write 1"),
        ("version: 1\n", "", 1, "version", "is missing", "write `version: 1`"),
        ("server: payments", "sever: payments", 2, "sever", "unknown field `sever`", "did you mean `server`?"),
        (
            "principal: acme",
            "uncontracted: stopp",
            4,
            "uncontracted",
            "`stopp` is not known here",
            "did you mean `stop`?",
        ),
        ("principal: acme", "owner: eve", 4, "owner", "it stands twice, first in line 3", "keep one"),
        ("owner: dana@example.com\n", "", 6, "tools.charge.owner", "nobody is named to be asked", "write `owner:"),
        ("principal: acme", "<<: {a: b}", 4, None, "only plain names can be fields", "merges are not read"),
        (
            "principal: acme",
            "principal: !!python/name:os.system ''",
            4,
            "principal",
            "the tag",
            "write the value alone",
        ),
        ("principal: acme", "principal: `acme`", 4, None, "it is not YAML", "quote a value that begins with `"),
        ("principal: acme", "principal: [acme", 5, None, "it is not YAML", "correct it"),
    ],
)
def test_a_fault_of_the_file_is_told_alike(old: str, new: str, line: int, field: str | None, problem: str, remedy: str):
    """Also where the file as a whole is at fault."""
    text = GOOD.replace(old, new, 1)
    found = [p for p in problems(text) if (p.line, p.field) == (line, field)]
    assert 1 == len(found), [str(p) for p in problems(text)]
    assert problem in found[0].problem
    assert remedy in found[0].remedy


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "- 1\n", "words\n", "version: 1\n---\nversion: 1\n", "a: b: c\n", "[" * 99_999]
)
def test_what_is_no_contract_file_is_refused(text: str):
    """An empty contract would let every call pass."""
    assert problems(text)


def test_a_file_without_tools_is_refused():
    """It would guard nothing, and look as if it did."""
    assert (4, "tools") == only("version: 1\nserver: a\nowner: d\ntools: {}\n")[:2]


def test_a_read_needs_no_owner():
    """Nobody is ever asked about a read."""
    assert parse("version: 1\nserver: a\ntools: {get: {effect: read}}\n").owner is None


def test_a_case_that_writes_needs_an_owner():
    """What reads for most arguments may write for some."""
    text = "version: 1\nserver: a\ntools:\n  get:\n    effect: read\n    cases: [{when: {a: 1}, effect: write}]\n"
    assert (4, "tools.get.owner") == only(text)[:2]


def test_all_problems_of_a_file_are_told_at_once():
    """Correcting one line at a time is how people give up."""
    text = GOOD.replace("effect: write", "effekt: write").replace("attempts: 1", "attempts: x")
    found = problems(text)
    assert [7, 8, 16] == [problem.line for problem in found]
    with pytest.raises(ContractFileError) as caught:
        parse(text, file="pay.yaml")
    assert "\n".join(map(str, found)) == str(caught.value)
    assert (found[0].line, found[0].field) == (caught.value.line, caught.value.field)


def test_an_alias_bomb_is_refused_before_it_unfolds():
    """A file of one kilobyte must not fill the memory of the guard."""
    text = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"{n}: &{n} [{', '.join([f'*{p}'] * 10)}]\n" for p, n in zip("abcdefg", "bcdefgh", strict=True))
    assert "it unfolds into too much" in only(text)[2]


def test_an_alias_that_holds_itself_is_refused():
    """It would unfold for ever."""
    assert "it unfolds into too much" in only("a: &a [*a]\n")[2]


def test_a_file_that_is_too_large_is_refused(tmp_path: Path):
    """Nobody writes a megabyte of contracts by hand."""
    path = tmp_path / "large.yaml"
    path.write_text(GOOD + "#" * 1_100_000)
    with pytest.raises(ContractFileError, match="larger than 1048576 bytes"):
        load(path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path):
    """A binary file is a mistaken path."""
    path = tmp_path / "image.yaml"
    path.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(ContractFileError, match="it is not UTF-8"):
        load(path)


def test_a_missing_file_is_a_contract_error(tmp_path: Path):
    """Starting without contracts because a path was mistyped is the worst of defaults."""
    with pytest.raises(ContractError, match=r"nowhere\.yaml: it cannot be read: No such file"):
        load(tmp_path / "nowhere.yaml")


def test_several_files_tell_their_problems_together(tmp_path: Path):
    """One run of lint, one list."""
    first, second, third = tmp_path / "1.yaml", tmp_path / "2.yaml", tmp_path / "3.yaml"
    first.write_text(GOOD)
    second.write_text(GOOD.replace("effect: write", "effect: wirte"))
    third.write_text(GOOD)
    with pytest.raises(ContractFileError) as caught:
        load_many([first, second, third])
    assert [(str(second), 8), (str(third), 2)] == [(p.file, p.line) for p in caught.value.problems]
    assert ["payments"] == [contracts.server for contracts in load_many([first])]
