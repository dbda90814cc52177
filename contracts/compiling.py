"""From contract files to the tools that the guard uses.

Compiled once per tool and case, and kept: a call then costs a dictionary look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from onceward.errors import ContractError
from onceward.evidence import Effect
from onceward.keys import KeyFormat
from onceward.outcomes import Accepted, ErrorRule, ErrorRules
from onceward.toolbox import Toolbox, reads_by_name
from onceward.tools import BatchPlan, KeyPlace, ProgressPlan, ReadPlan, Tool

from .model import ServerContracts, ToolContract
from .parts import Key, Progress, ReadBack
from .values import Query


class ContractToolbox(Toolbox):
    """The tools of one contract file."""

    def __init__(self, contracts: ServerContracts) -> None:
        """Take validated contracts; `bound` ones where the living tools are known."""
        self.contracts = contracts
        self.server = contracts.server
        self.owner = contracts.owner or ""
        self._compiled: dict[int, Tool] = {}
        self._hints: dict[str, bool] = {}

    def rebind(self, contracts: ServerContracts, hints: Mapping[str, bool]) -> None:
        """Use other contracts from the next call on, and what the living tools say: name -> only reads."""
        self._compiled = {}
        self._hints = {**self._hints, **hints}
        self.contracts = contracts

    def declared(self, name: str, arguments: Mapping[str, Any]) -> Tool | None:
        """Return a tool under its contract, for these arguments; None where there is no contract."""
        contract = self.contracts.tools.get(name)
        if contract is None:
            return None
        contract = contract.for_arguments(arguments) if contract.cases else contract
        tool = self._compiled.get(id(contract))
        if tool is None:
            tool = self._compiled[id(contract)] = compiled(name, contract, self.server, self.owner)
        return tool

    def uncontracted(self, name: str) -> Effect:
        """Let reads pass: said by the living tool (a hint may do that much), its name, or the operator."""
        if self.contracts.uncontracted == "pass" or self._hints.get(name, False) or reads_by_name(name):
            return Effect.READ
        return Effect.UNDECLARED


def toolbox_of(contracts: ServerContracts | str | Path | Iterable[str | Path]) -> ContractToolbox:
    """Load and compile a contract file. Raises ContractError."""
    from .loader import load

    if isinstance(contracts, str | Path):
        contracts = load(contracts)
    if isinstance(contracts, ServerContracts):
        _check(contracts)
        return ContractToolbox(contracts)
    raise TypeError(f"contracts must be a file or loaded contracts, not {type(contracts).__name__}")


def _check(contracts: ServerContracts) -> None:
    """Compile everything once, so that no contract fails at its first call."""
    for name, contract in contracts.tools.items():
        for variant in (contract, *(variant for _, variant in contract.variants)):
            try:
                compiled(name, variant, contracts.server, contracts.owner or "")
            except ValueError as error:
                raise ContractError(
                    str(error),
                    file=contracts.file,
                    field=f"tools.{name}.key.format",
                    line=contracts.line("tools", name, "key", "format"),
                    remedy="allow longer keys, or more characters in them",
                ) from error


def compiled(name: str, contract: ToolContract, server: str, owner: str) -> Tool:
    """Compile one contract."""
    return Tool(
        name=name,
        server=server,
        contract=contract.decision(owner),
        kind=contract.kind or "",
        rules=contract.rules(),
        errors=_errors(contract),
        key=_key(contract.key) if contract.key else None,
        read=_read(contract.read_back) if contract.read_back else None,
        progress=_progress(contract.progress) if contract.progress else None,
        batch=BatchPlan(items=contract.batch.items, identity=contract.batch.identity) if contract.batch else None,
        once_per_window=contract.once == "window",
        redact=contract.redact,
        undo=contract.undo,
        boundary=contract.key.boundary if contract.key else None,
    )


def _key(key: Key) -> KeyPlace:
    if key.format.token is None:
        form = KeyFormat(kind="uuid")
    else:
        token = key.format.token
        form = KeyFormat(kind="token", min=token.min, max=token.length, alphabet=token.alphabet)
    return KeyPlace(where=key.where, name=key.name, format=form, replace=key.caller == "replace")  # type: ignore[arg-type]  # the model's pattern allows these four words only


def _read(read: ReadBack) -> ReadPlan:
    return ReadPlan(
        tool=read.tool,
        arguments=read.arguments,
        items=read.items,
        match=tuple(read.match.items()),
        created=read.created,
        baseline=read.baseline,
        stamp_argument=read.stamp.argument if read.stamp else None,
        stamp_item=read.stamp.shown if read.stamp else None,
        page_argument=read.pages.argument if read.pages else None,
        page_next=read.pages.next if read.pages else None,
        page_size=read.pages.size if read.pages else None,
    )


def _progress(progress: Progress) -> ProgressPlan:
    return ProgressPlan(
        tool=progress.tool,
        arguments=progress.arguments,
        path=progress.path,
        pending=progress.pending,
        done=progress.done,
        failed=progress.failed,
    )


def _errors(contract: ToolContract) -> ErrorRules:
    rules = tuple(
        ErrorRule(status=status, code=code, text=rule.pattern, fields=tuple((rule.field or {}).items()), as_=rule.as_)
        for rule in contract.errors
        for status in rule.status or (None,)
        for code in rule.code or (None,)
    )
    key, progress = contract.key, contract.progress
    accepted = None
    if progress is not None:
        conditions = tuple((progress.accepted_when or {}).items())
        accepted = Accepted(reference=progress.reference, when=_all_hold(conditions) if conditions else None)
    return ErrorRules(
        errors=rules,
        key=key is not None,
        on_repeat=key.on_repeat if key else None,
        replay_marker=_marker(key) if key else None,
        accepted=accepted,
    )


def _marker(key: Key) -> Any:
    marker = key.replay_marker
    if marker is None:
        return None
    if marker.header is not None or marker.field is None:
        return marker.header
    return marker.field if marker.value is None else _all_hold(((marker.field, marker.value),))


def _all_hold(conditions: tuple[tuple[Query, Any], ...]) -> Callable[[Any], bool]:
    return lambda data: all(query.search(data) == value for query, value in conditions)
