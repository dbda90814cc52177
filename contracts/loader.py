"""Contract files: read strictly, or refuse with file, line, field and remedy.

YAML is read as the JSON it means: texts, numbers, true, false, null, lists and mappings with text keys. `yes`, `010`
and `2026-12-01` are texts; a value that looks like a switch or a date to one reader and not to another is how contracts
go wrong unseen. All problems of a file are told at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from onceward.errors import ContractError
from onceward.evidence import Effect

from .model import EFFECTS, Promises, ServerContracts, ToolContract

SIZE_LIMIT = 1_048_576  #: bytes; a contract of one tool takes about one thousand
NODE_LIMIT = 50_000  #: values after aliases are followed, so that a small file cannot unfold into a large one
DEPTH_LIMIT = 32

Place = tuple[str | int, ...]


class ContractFileError(ContractError):
    """Everything that is wrong with one or more files; its own attributes are those of the first problem.

    Attributes: `problems`, each a `ContractError`.
    """

    def __init__(self, problems: Sequence[ContractError]) -> None:
        first = problems[0]
        super().__init__(first.problem, file=first.file, field=first.field, line=first.line, remedy=first.remedy)
        self.args = ("\n".join(str(problem) for problem in problems),)
        self.problems = tuple(problems)


def load(path: Path | str) -> ServerContracts:
    """Read one contract file. Raises ContractFileError, a ContractError that lists all of them."""
    file = str(path)
    try:
        with open(path, "rb") as stream:
            data = stream.read(SIZE_LIMIT + 1)
    except OSError as error:
        problem = f"it cannot be read: {error.strerror or error}"
        raise ContractFileError([ContractError(problem, file=file, remedy="name a contract file")]) from None
    return parse(data, file=file)


def load_many(paths: Iterable[Path | str]) -> list[ServerContracts]:
    """Read several files, one for each server. Raises ContractFileError with the problems of all of them."""
    loaded: list[ServerContracts] = []
    problems: list[ContractError] = []
    for path in paths:
        try:
            contracts = load(path)
        except ContractFileError as error:
            problems.extend(error.problems)
            continue
        twin = next((other for other in loaded if other.server == contracts.server), None)
        if twin is not None:
            problems.append(
                ContractError(
                    f"{twin.file} is about `{contracts.server}` too",
                    file=contracts.file,
                    field="server",
                    line=contracts.line("server"),
                    remedy="keep one file for each server",
                )
            )
        loaded.append(contracts)
    if problems:
        raise ContractFileError(problems)
    return loaded


def parse(data: bytes | str, *, file: str = "<contracts>") -> ServerContracts:
    """Read a contract file's content, YAML or JSON."""
    document, lines, problems = _read(data, file)
    if problems:
        raise ContractFileError(problems)
    try:
        contracts = ServerContracts.model_validate(document)
    except ValidationError as error:
        problems = [_translate(e, lines, file) for e in error.errors(include_url=False)]
        raise ContractFileError(sorted(problems, key=lambda problem: problem.line or 0)) from None
    contracts = contracts.located(file, lines)
    problems = list(_cross_check(contracts))
    if problems:
        raise ContractFileError(problems)
    return contracts


# --- YAML ---------------------------------------------------------------------------------------------------------

_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset(_TAG + name for name in ("null", "bool", "int", "float", "str", "timestamp", "value", "merge"))
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,18})", re.ASCII)
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", re.ASCII)
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}


class _UnreadableError(Exception):
    """The file cannot be taken further: what follows the fault would be misread."""


def _read(data: bytes | str, file: str) -> tuple[Any, dict[Place, int], list[ContractError]]:
    """Return the document, the line of each place in it, and what is wrong with its form."""
    lines: dict[Place, int] = {(): 1}
    problems: list[ContractError] = []
    count = 0

    def fault(problem: str, remedy: str, node: yaml.Node | None, place: Place = ()) -> None:
        line = node.start_mark.line + 1 if node is not None else None
        problems.append(ContractError(problem, file=file, field=_dotted(place) or None, line=line, remedy=remedy))

    def value(node: yaml.Node, place: Place) -> Any:
        nonlocal count
        count += 1
        if count > NODE_LIMIT or len(place) > DEPTH_LIMIT:
            fault("it unfolds into too much", "state each contract plainly, without nested aliases", node, place)
            raise _UnreadableError
        if isinstance(node, yaml.ScalarNode):
            if node.tag not in _PLAIN_TAGS:
                fault(f"the tag {node.tag} has no meaning here", "write the value alone", node, place)
            return _plain(node)
        if isinstance(node, yaml.SequenceNode):
            items = []
            for index, child in enumerate(node.value):
                lines[*place, index] = child.start_mark.line + 1
                items.append(value(child, (*place, index)))
            return items
        return mapping(node, place)

    def mapping(node: yaml.Node, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, child in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                fault("only plain names can be fields", "write `name: value`; merges are not read", key, place)
            elif key.value in found:
                first = lines[*place, key.value]
                fault(f"it stands twice, first in line {first}", "keep one", key, (*place, key.value))
            else:
                lines[*place, key.value] = key.start_mark.line + 1
                found[key.value] = value(child, (*place, key.value))
        return found

    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
        if len(data) > SIZE_LIMIT:
            fault(f"it is larger than {SIZE_LIMIT} bytes", "keep one server to a file", None)
            return None, lines, problems
        # JSON may be indented with tabs, YAML may not; a tab inside a JSON text would be written \t.
        text = text.replace("\t", " ") if text.lstrip().startswith("{") else text
        root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if root is None:
            fault("it is empty", "begin with `version: 1`", None)
            return None, lines, problems
        return value(root, ()), lines, problems
    except UnicodeDecodeError:
        problems.append(ContractError("it is not UTF-8", file=file, remedy="save it as UTF-8"))
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        line = mark.line + 1 if mark is not None else None
        remedy = "correct it; quote a value that begins with ` @ * & ! % [ { or holds `: `"
        problems.append(ContractError(f"it is not YAML: {what}", file=file, line=line, remedy=remedy))
    except _UnreadableError:
        pass
    return None, lines, problems


def _plain(node: yaml.ScalarNode) -> Any:
    text: str = node.value
    if node.style or node.tag == _TAG + "str":
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


# --- problems ------------------------------------------------------------------------------------------------------

_REMEDIES = {
    "version": "write `version: 1`",
    "server": "write `server: NAME`",
    "tools": "write `tools:` and below it one mapping for each tool",
    "effect": f"write one of {', '.join(EFFECTS)}",
    "tool": "name the tool that reads",
    "in": "write argument:NAME, meta:NAME, param:NAME or header:NAME",
    "as": "write one of refused, busy, done, unknown, rate_limited",
    "path": "write where the status is in the result, as JMESPath",
    "done": "list the statuses that mean done",
    "when": "write {argument: value}",
}
_KINDS = {
    "string_type": ("a text", "put it in quotes"),
    "int_type": ("a whole number", "write a whole number"),
    "bool_type": ("true or false", "write true or false"),
    "tuple_type": ("a list", "write [one, two]"),
    "dict_type": ("a mapping", "write `name: value` below it"),
    "model_type": ("a mapping", "write `name: value` below it"),
}


def _translate(error: ErrorDetails, lines: Mapping[Place, int], file: str) -> ContractError:
    """Turn pydantic's error into ours: where, what, and what to do."""
    place: Place = tuple(part for part in error["loc"] if part != "[key]")
    context = error.get("ctx", {})
    kind = error["type"]
    if kind == "contract":
        place = (*place, *context["at"])
        problem, remedy = str(context["problem"]), str(context["remedy"])
    elif kind == "extra_forbidden":
        known = fields_at(place[:-1])
        near = nearest(str(place[-1]), known)
        problem = f"unknown field `{place[-1]}`"
        remedy = f"did you mean `{near}`?" if near else f"known here: {', '.join(known)}"
    elif kind == "missing":
        problem, remedy = "is missing", _REMEDIES.get(str(place[-1]), f"add `{place[-1]}`")
    elif kind == "literal_error":
        allowed = [word.strip("'") for word in re.findall(r"'[^']*'|\d+", str(context["expected"]))]
        near = nearest(str(error["input"]), allowed)
        problem = f"`{error['input']}` is not known here"
        remedy = f"did you mean `{near}`?" if near else f"write {'one of ' * (len(allowed) > 1)}{', '.join(allowed)}"
    elif kind == "string_pattern_mismatch":
        problem = f"`{error['input']}` is not a path to an argument"
        remedy = "write dotted names, [] after a list: customer.id, items[].sku"
    elif kind in _KINDS:
        wanted, remedy = _KINDS[kind]
        problem = f"expected {wanted}"
    else:
        problem, remedy = error["msg"][:1].lower() + error["msg"][1:], "correct the value"
    if kind == "contract" and place[-1:] == ("effect",):
        near = nearest(str(error["input"]), EFFECTS)
        remedy = f"did you mean `{near}`?" if near else remedy
    return ContractError(problem, file=file, field=_dotted(place) or None, line=_line(lines, place), remedy=remedy)


def _line(lines: Mapping[Place, int], place: Place) -> int | None:
    """Return the line of a place, or of the innermost thing around it that the file holds."""
    return next((lines[place[:n]] for n in range(len(place), -1, -1) if place[:n] in lines), None)


def _dotted(place: Place) -> str:
    return ".".join(str(part) for part in place)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` was probably meant to be."""
    from rapidfuzz import process
    from rapidfuzz.distance import OSA

    choices = list(known)
    found = process.extractOne(word.lower(), choices, scorer=OSA.normalized_similarity, score_cutoff=0.6)
    return str(found[0]) if found else None


def fields_at(place: Place) -> list[str]:
    """Return the fields that may stand at a place of the file."""
    at: Any = ServerContracts
    for part in place:
        if _is_model(at):
            fields = {field.alias or name: field.annotation for name, field in at.model_fields.items()}
            at = _bare(fields.get(str(part)))
        else:
            at = _bare((get_args(at) or (None,))[-1 if get_origin(at) is dict else 0])
    return [field.alias or name for name, field in at.model_fields.items()] if _is_model(at) else []


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _bare(annotation: Any) -> Any:
    """Return an annotation without its metadata, and without the None that makes it optional."""
    while get_origin(annotation) not in (None, dict, tuple):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    return annotation


# --- what one field says about another ----------------------------------------------------------------------------


def _cross_check(contracts: ServerContracts) -> Iterator[ContractError]:
    if not contracts.tools:
        yield _problem(contracts, ("tools",), "no tool is named", "write `NAME: {effect: write}` below it")
    for name, tool in contracts.tools.items():
        place: Place = ("tools", name)
        yield from _check_tools(contracts, tool, place)
        for number, case in enumerate(tool.cases):
            yield from _check_tools(contracts, case, (*place, "cases", number))
        owners = [tool.owner or contracts.owner, *(v.owner or contracts.owner for _, v in tool.variants)]
        if not all(owners) and any(t.effect is not Effect.READ for t in (tool, *(v for _, v in tool.variants))):
            yield _problem(
                contracts, (*place, "owner"), "nobody is named to be asked", "write `owner: who@example.com`"
            )


def _check_tools(contracts: ServerContracts, promises: Promises, place: Place) -> Iterator[ContractError]:
    """Check that every tool that a contract names is there, and is of the kind it is used as."""
    named = (
        (promises.read_back and promises.read_back.tool, ("read_back", "tool"), True),
        (promises.progress and promises.progress.tool, ("progress", "tool"), True),
        (promises.undo, ("undo",), False),
    )
    for name, field, reads in named:
        if not name:
            continue
        other: ToolContract | None = contracts.tools.get(name)
        if other is None:
            near = nearest(name, contracts.tools)
            add = f"add it under `tools` with `effect: {'read' if reads else 'write'}`"
            remedy = f"did you mean `{near}`? Else {add}" if near else add
            yield _problem(contracts, (*place, *field), f"there is no tool `{name}` in this file", remedy)
        elif reads and other.effect is not Effect.READ:
            remedy = f"name a reading tool, or declare `{name}` with `effect: read`"
            yield _problem(contracts, (*place, *field), f"`{name}` does not only read", remedy)
        elif not reads and other.effect is Effect.READ:
            yield _problem(
                contracts, (*place, *field), f"`{name}` only reads and can undo nothing", "name another tool"
            )


def _problem(contracts: ServerContracts, place: Place, problem: str, remedy: str) -> ContractError:
    return ContractError(problem, file=contracts.file, field=_dotted(place), line=contracts.line(*place), remedy=remedy)
