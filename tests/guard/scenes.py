"""Scenes for the guard: a trace in the simulated world, and what a truthful guard ends with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import jmespath

from onceward.evidence import (
    Act,
    Code,
    Contract,
    Effect,
    KeySupport,
    ReadBack,
)
from onceward.identity import Rules
from onceward.outcomes import ErrorRules
from onceward.recovery import Send
from onceward.tools import KeyPlace, ReadPlan, Tool
from tests.guard.world import KEYS, Caller, Keys, Plan, World

BOUND_S, LAG_S, ALLOWANCE_S, LEASE_S = 10.0, 5.0, 5.0, 30.0
LOST = Plan(reply="lost")
CHARGE = {"invoice": "in_1", "amount": 100}
SAFE = KeySupport(retention_s=inf, concurrent_safe=True)
UNSAFE_KEY = KeySupport(retention_s=inf)
SHORT = KeySupport(retention_s=100.0, concurrent_safe=True)
KEY = KeyPlace(where="header", name="idempotency-key")
_INVOICE = jmespath.compile("invoice")
SEEN = ReadPlan(
    tool="list_charges",
    arguments={"invoice": _INVOICE},
    match=((_INVOICE, _INVOICE),),
    created=jmespath.compile("created"),
)
COUNTED = replace(SEEN, created=None, baseline=True)
STAMPED = replace(SEEN, created=None, stamp_argument="note", stamp_item=jmespath.compile("note"))


def tool(effect: Effect = Effect.WRITE, **fields: Any) -> Tool:
    """Build a charge tool: `key`, `read`, `errors`, `redact`, ... as in `Tool`, everything else as in `Contract`."""
    fields = {"in_flight_s": BOUND_S, "lag_s": LAG_S, "identity": ("invoice",), "read": None, "key": None} | fields
    read, key, lag_s = fields.pop("read"), fields.pop("key"), fields.pop("lag_s")
    names = ("errors", "batch", "redact", "inner_retries", "once_per_window")
    rest = {name: fields.pop(name) for name in names if name in fields}
    rules = Rules(identity=fields.pop("identity"), content=fields.pop("content", ()))
    contract = Contract(
        effect=effect,
        owner="ops@example.com",
        key=key,
        read_back=ReadBack(lag_s=lag_s, baseline=read.baseline) if read else None,
        batch="batch" in rest,
        **fields,
    )
    rest.setdefault("errors", ErrorRules(key=key is not None, on_repeat="conflict_busy" if key else None))
    return Tool(
        name="charge",
        server="bank",
        contract=contract,
        rules=rules,
        read=read,
        key=KEY if key is not None else None,
        **rest,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A trace, its world, and what a truthful guard ends with."""

    trace: Callable[[World], None]
    effects: int
    last: dict[str, Any] | None = None  #: what must have taken place last
    lag_s: float = LAG_S
    keys: Keys = KEYS

    def play(self, folder: Path) -> World:
        world = World(folder, lag_s=self.lag_s, keys=self.keys)
        try:
            self.trace(world)
            world.advance(2_000)
        finally:
            world.close()
        return world

    def right(self, world: World) -> bool:
        """Tell whether each intent had one effect, nobody was promised one that is not there, and the last is last."""
        as_meant = len(world.ours) == self.effects and world.claims <= len(world.ours)
        return as_meant and (self.last is None or world.ours[-1] == self.last)


def told(world: World) -> list[tuple[Act, Code | None]]:
    return [caller.act for caller, _ in world.told]


def lose(world: World, made: Tool, arguments: dict[str, Any] = CHARGE, after_s: float = 0.0, **more: Any) -> Caller:
    """Send a request, and die before any answer is recorded."""
    caller = Caller(world, made, arguments, **more)
    caller.until(Send)
    world.advance(after_s)
    caller.leave()
    caller.crash()
    return caller
