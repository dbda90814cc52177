"""`onceward proxy`: start one guarded tool server for one client.

The tool server is spawned before anything else is imported, so that it starts up while the contracts load. What is
typed after `--` is the tool server's command; with `--listen` and `--upstream` the proxy speaks Streamable HTTP.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .wire import Call, Gate

_EPILOG = """\
examples:
  onceward proxy --contracts payments.yaml -- python payments_server.py
  onceward proxy --contracts payments.yaml --scope nightly-7 --listen 127.0.0.1:8900 --upstream http://127.0.0.1:8800/mcp
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line of the proxy; argparse, because it is there before anything is installed or imported."""
    p = argparse.ArgumentParser(
        prog="onceward proxy", epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__
    )
    p.add_argument("--contracts", metavar="FILE", help="contract file of this server; without it nothing is declared")
    p.add_argument("--journal", metavar="PATH", help="journal file ($ONCEWARD_JOURNAL, else the user's state folder)")
    p.add_argument("--scope", metavar="S", help="scope of the calls, where the harness gives none")
    p.add_argument("--principal", metavar="P", help="whose account it is: a name, or header:NAME over HTTP")
    p.add_argument("--profile", default="default", choices=["default", "codex", "claude", "copilot", "hermes"])
    p.add_argument("--patience", type=float, default=45.0, metavar="S", help="seconds until a call is answered (45)")
    p.add_argument(
        "--attempt-timeout", type=float, default=30.0, metavar="S", help="seconds until one attempt is unknown (30)"
    )
    p.add_argument("--listen", metavar="HOST:PORT", help="serve Streamable HTTP here, in front of --upstream")
    p.add_argument("--upstream", metavar="URL", help="the tool server's Streamable HTTP endpoint")
    p.add_argument("--allow-origin", action="append", default=[], metavar="ORIGIN", help="another allowed Origin")
    p.add_argument("--allow-host", action="append", default=[], metavar="HOST", help="further allowed Host header")
    p.add_argument("command", nargs="*", metavar="COMMAND", help="the tool server's command, after --")
    return p


def run(argv: Sequence[str] | None = None) -> int:
    """Run the proxy until its client or its tool server ends. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["proxy"]:
        words = words[1:]
    command: list[str] = []
    if "--" in words:
        cut = words.index("--")
        words, command = words[:cut], words[cut + 1 :]
    p = parser()
    options = p.parse_args(words)
    command = command or options.command
    if bool(command) == bool(options.upstream):
        p.error("give either a COMMAND after --, or --listen with --upstream")
    if options.patience <= 0 or options.attempt_timeout <= 0:
        p.error("--patience and --attempt-timeout are seconds, more than 0")
    if bool(options.listen) != bool(options.upstream):
        p.error("--listen and --upstream belong together")
    return _stdio(options, command) if command else _http(options)


def _stdio(options: argparse.Namespace, command: list[str]) -> int:
    try:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        print(f"error: cannot start the tool server {command[0]!r}: {error}", file=sys.stderr)
        return 127
    import asyncio  # only now: the server starts up while this is read

    from . import stdio

    scope = _process_scope(options)

    def ready() -> Gate:
        return _gate(options, lambda call: _scope_of_stdio(call, scope))

    try:
        return asyncio.run(stdio.relay(command, ready, spawned=child))
    except _declared_wrong() as error:
        child.kill()
        print(f"error: {error}", file=sys.stderr)
        return 2


def _http(options: argparse.Namespace) -> int:
    import asyncio
    from urllib.parse import urlsplit

    host, _, port = options.listen.rpartition(":")
    if not host or not port.isdigit():
        print("error: --listen wants HOST:PORT, such as 127.0.0.1:8900", file=sys.stderr)
        return 2
    try:
        from . import http
    except ImportError as error:
        print(f"error: the HTTP proxy needs an extra: pip install 'onceward[http]' ({error})", file=sys.stderr)
        return 2

    def announce(bound: int) -> None:
        path = urlsplit(options.upstream).path or "/"
        print(f"listening on http://{host}:{bound}{path}", file=sys.stderr, flush=True)
        if options.scope is None:
            note = "calls without a conversation id or X-Onceward-Scope header are refused where a contract says write"
            print(f"onceward: no --scope: {note}", file=sys.stderr, flush=True)

    try:
        gate = _gate(options, lambda call: _scope_of_http(call, options.scope), http=True)
        token = os.environ.get("ONCEWARD_TOKEN")
        asyncio.run(
            http.serve(
                host,
                int(port),
                options.upstream,
                gate,
                allowed_origins=tuple(options.allow_origin),
                allowed_hosts=tuple(options.allow_host),
                token=token,
                ready=announce,
            )
        )
    except (_declared_wrong(), ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _declared_wrong() -> type[Exception]:
    from onceward.errors import GuardError

    return GuardError


def _gate(options: argparse.Namespace, scope_of: Callable[[Call], str | None], *, http: bool = False) -> Gate:
    """Load everything that guarding needs. Raises ContractError; without a journal only reads pass."""
    from onceward.contracts.compiling import toolbox_of
    from onceward.contracts.model import ServerContracts
    from onceward.drive import Guard
    from onceward.errors import JournalError
    from onceward.gathering import Settings

    from .gate import ClosedGate, GuardGate
    from .listing import Listing

    if options.contracts:
        toolbox = toolbox_of(options.contracts)
    else:
        toolbox = toolbox_of(ServerContracts(version=1, server=options.upstream or "tools", tools={}))
    principal = options.principal or toolbox.contracts.principal
    listing = Listing(toolbox)
    try:
        guard = Guard(
            toolbox,
            options.journal,
            principal="default" if principal is None or principal.startswith(HEADER) else principal,
            patience_s=options.patience,
            settings=Settings(attempt_timeout_s=min(options.attempt_timeout, options.patience)),
        )
    except JournalError as error:
        print(f"onceward: {error}. Until then only reads pass.", file=sys.stderr, flush=True)
        return ClosedGate(listing, error, profile=options.profile)
    return GuardGate(
        guard,
        listing,
        scope_of=scope_of,
        call_id_of=_call_id_of,
        principal_of=_principal_of(principal, guard.core.secret) if http else lambda call: None,
        nameless=_nameless(principal) if http else lambda call: None,
        profile=options.profile,
    )


def _principal_of(principal: str | None, secret: bytes) -> Callable[[Call], str | None]:
    """Read whose account it is from the header that was named, of which only a keyed hash is ever kept.

    Where nothing is configured, the credentials keep the uncontracted calls of two users apart.
    """
    import hmac

    named = principal.removeprefix(HEADER).lower() if principal and principal.startswith(HEADER) else None
    header = "authorization" if principal is None else named

    def read(call: Call) -> str | None:
        given = call.headers.get(header) if header else None
        return f"header:{hmac.digest(secret, given.encode(), 'sha256').hex()[:24]}" if given else None

    return read


def _nameless(principal: str | None) -> Callable[[Call], str | None]:
    """Return why a call cannot be told from another user's; None = it can.

    Credentials are renewed, also between a lost reply and its retry, so they name nobody for long: taking them for a
    name would make the retry somebody else's first call, and a second effect.
    """
    named = principal.removeprefix(HEADER).lower() if principal and principal.startswith(HEADER) else None

    def why(call: Call) -> str | None:
        if principal is None and "authorization" in call.headers:
            return (
                "it carries credentials, and nothing says whose: start the proxy with --principal NAME or header:NAME"
            )
        if named is not None and not call.headers.get(named):
            return f"it has no header {named}, which says whose account it is"
        return None

    return why


# -- what a harness says of itself --------------------------------------------------------------------------------

HEADER = "header:"  #: before the name of a header that says whose account it is
_SCOPE_KEYS = ("dev.onceward/scope", "threadId")
_CALL_KEYS = ("dev.onceward/call", "callId", "claudecode/toolUseId")
_SESSION_VARIABLES = ("ONCEWARD_SCOPE", "CLAUDE_CODE_SESSION_ID", "COPILOT_AGENT_SESSION_ID")
_SCOPE_HEADERS = ("x-onceward-scope",)


def _scope_of_stdio(call: Call, process_scope: str) -> str:
    return _from_meta(call, _SCOPE_KEYS) or process_scope


def _scope_of_http(call: Call, configured: str | None) -> str | None:
    """Over HTTP nothing else is stable: a session id changes on every reconnect."""
    by_header = next((call.headers[name] for name in _SCOPE_HEADERS if call.headers.get(name)), None)
    return _from_meta(call, _SCOPE_KEYS) or by_header or configured


def _call_id_of(call: Call) -> str | None:
    return _from_meta(call, _CALL_KEYS)


def _from_meta(call: Call, names: tuple[str, ...]) -> str | None:
    meta: dict[str, Any] = call.meta
    return next((str(meta[name]) for name in names if isinstance(meta.get(name), str | int)), None)


def _process_scope(options: argparse.Namespace) -> str:
    """Return the session that the harness puts into the environment, else --scope, else the harness's process."""
    for name in _SESSION_VARIABLES:
        if os.environ.get(name):
            return f"{name.lower()}:{os.environ[name]}"
    if options.scope is None:
        note = "a restarted harness counts as a new conversation; give --scope to outlast a restart"
        print(f"onceward: the scope is this harness process: {note}", file=sys.stderr, flush=True)
    return options.scope or _parent_scope(options.profile)


def _parent_scope(profile: str) -> str:
    """Name the parent process by pid and start time; behind a watchdog that is respawned with us, its parent."""
    from onceward.journal.base import process_started

    pid = os.getppid()
    if profile == "hermes":
        try:
            with open(f"/proc/{pid}/stat", "rb") as stat:
                pid = int(stat.read().rsplit(b")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            pass
    return f"process:{pid}:{process_started(pid) or ''}"
