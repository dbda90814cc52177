"""What we want kept true of the code itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PARTS = ("guard", "contracts", "adapters", "sandbox", "evals")
SOURCES = sorted(p for part in PARTS for p in (ROOT / part).rglob("*.py"))
PYTHON = [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))]
TEXTS = [*PYTHON, *sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "Makefile"]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_nothing_imports_a_second_copy_of_the_package(path: Path):
    """`import guard` works by accident at the root of a checkout, and its classes are not those of `onceward`."""
    assert set() == {module for module in imports(path) if module.split(".")[0] in PARTS}


@pytest.mark.parametrize("path", sorted((ROOT / "guard").rglob("*.py")), ids=name)
def test_the_core_needs_no_sdk_and_no_server(path: Path):
    """The guard's own modules import the standard library, and few small libraries where they are used."""
    allowed = {"rapidfuzz", "rfc8785", "onceward"} | set(sys.stdlib_module_names)

    assert {module.split(".")[0] for module in imports(path)} <= allowed


def test_the_package_list_is_the_tree():
    """Only what is listed is shipped."""
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    there = set()
    for init in (p for part in PARTS for p in (ROOT / part).rglob("__init__.py")):
        parts = init.parent.relative_to(ROOT).parts
        there.add(".".join(("onceward", *(parts[1:] if parts[0] == "guard" else parts))))

    assert there == listed


def test_importing_the_package_is_light():
    """No SDK, no web server, no command line; not even the journal, before somebody asks for it."""
    code = "import onceward, sys; print(*sorted(m.split('.')[0] for m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())

    assert set() == loaded & {"mcp", "httpx2", "uvicorn", "typer", "rich", "pydantic", "yaml", "sqlite3", "asyncio"}


def test_every_public_name_can_be_had():
    """Lazy names must not rot."""
    import onceward

    assert [] == [name for name in onceward.__all__ if not hasattr(onceward, name)]
    assert set(onceward._HOMES) == set(onceward.__all__)


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_a_file_is_one_idea(path: Path):
    """What does not fit on a few screens is more than one."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 470


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_a_broad_except_says_who_is_told(path: Path):
    """Catching everything is only right where somebody is told."""
    lines = path.read_text(encoding="utf-8").splitlines()
    silent = [
        number
        for number, line in enumerate(lines, 1)
        if re.match(r"\s*except (Base)?Exception\b", line)
        and "#" not in line
        and not (number < len(lines) and lines[number].strip().startswith("#"))
        and not re.search(r"raise|\.error = error", "".join(lines[number : number + 8]))
    ]

    assert [] == silent


@pytest.mark.parametrize("path", TEXTS, ids=name)
def test_nothing_is_left_for_later(path: Path):
    """Unfinished work belongs into an issue, not into the code."""
    if path == Path(__file__):
        return
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

    assert [] == words.findall(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_silenced_rule_is_named_and_has_its_reason(path: Path):
    """A `type: ignore` names what it ignores; a `noqa` also says why."""
    lines = path.read_text(encoding="utf-8").splitlines()
    bare = [
        number
        for number, line in enumerate(lines, 1)
        if re.search(r"# type: ignore(?!\[)", line) or re.search(r"# noqa(?!: [A-Z]+\d+ .*\w+ \w+)", line)
    ]

    assert [] == bare


def test_markdown_has_one_title():
    """A page is about one thing."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
        titles = [line for line in text.splitlines() if line.startswith("# ")]
        assert len(titles) == 1, page
