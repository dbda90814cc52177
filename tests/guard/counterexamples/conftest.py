"""Play a scene, and see that it ends well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.guard.scenes import Scene
from tests.guard.world import World


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[[Scene], World]]:
    def go(scene: Scene) -> World:
        world = scene.play(tmp_path)
        assert scene.right(world), (world.ledger, [(c.scope, c.label, c.act) for c, _ in world.told])
        return world

    return go
