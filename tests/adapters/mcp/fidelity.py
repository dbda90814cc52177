"""What a relay must not touch: requests, and every byte that a client gets for them.

`echo_server.py` plays these cases: it answers only a request whose bytes are exactly those of a case, with exactly the
bytes of that case. So one comparison at the client covers both directions. The cases hold for any transport: a message
is a line over stdio, and a body or an event's data over HTTP.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request, and what belongs to it."""

    name: str
    request: bytes
    expected: tuple[bytes, ...]  #: every message that the client gets, in order; the response is the last
    answers: tuple[bytes, ...] = ()  #: what the client sends for each request of the server among `expected`


def _case(name: str, request: str | bytes, *expected: str | bytes, answers: tuple[str, ...] = ()) -> Case:
    return Case(
        name=name,
        request=_bytes(request),
        expected=tuple(_bytes(each) for each in expected),
        answers=tuple(_bytes(each) for each in answers),
    )


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _call(id_: str, arguments: str = "{}", more: str = "") -> str:
    return (
        f'{{"jsonrpc":"2.0","id":{id_},"method":"tools/call","params":{{"name":"look","arguments":{arguments}{more}}}}}'
    )


def _text(id_: str, text: str, more: str = "") -> str:
    return f'{{"jsonrpc":"2.0","id":{id_},"result":{{"content":[{{"type":"text","text":"{text}"}}]{more}}}}}'


_ENVELOPE = (
    '"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":'
    '{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}},"com.example/x":[1.0]}'
)
_TOOL = (
    '{"name":"look","x-unknown":{"a":[1.50]},"title":"Look","annotations":{"readOnlyHint":true,"com.example/hint":"h"},'
    '"inputSchema":{"$schema":"https://json-schema.org/draft/2020-12/schema","$anchor":"top","$defs":{"p":{"type":'
    '"string"}},"type":"object","properties":{"a":{"$ref":"#/$defs/p"}}},"_meta":{"com.example/m":1},"execution":{"t":1}}'
)

CASES: tuple[Case, ...] = (
    _case(
        "handshake with unknown capabilities",
        '{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":'
        '{"experimental":{"com.example/e":{"deep":[null,1.0]}},"x":1},"clientInfo":{"name":"f","version":"0","x":true}}}',
        '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},'
        '"experimental":{"com.example/s":{}},"x":2},"serverInfo":{"name":"echo","version":"1","x":[]},'
        '"instructions":"Line one\\nLine two","x":null}}',
    ),
    _case(
        "discovery in the stateless era",
        f'{{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{{{_ENVELOPE}}}}}',
        '{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","supportedVersions":["2026-07-28","2025-11-25"],'
        '"capabilities":{"tools":{}},"ttlMs":5,"x":1}}',
    ),
    _case(
        "tool list, first page",
        '{"jsonrpc":"2.0","id":2,"method":"tools/list"}',
        f'{{"jsonrpc":"2.0","id":2,"result":{{"tools":[{_TOOL}],"nextCursor":"p\\u0032","x":1}}}}',
    ),
    _case(
        "tool list, second page",
        '{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{"cursor":"p2"}}',
        f'{{"jsonrpc":"2.0","id":3,"result":{{"tools":[{_TOOL}],"ttlMs":60000}}}}',
    ),
    _case(
        "unknown fields on every level",
        '{"jsonrpc":"2.0","id":4,"x":1,"method":"tools/call","params":{"name":"look","arguments":{"a":null},"future":{},'
        '"_meta":{"com.example/k":{"z":1,"a":2}}}}',
        '{"jsonrpc":"2.0","id":4,"result":{"content":[{"type":"text","text":"t","x":1,"annotations":{"audience":["u"]}},'
        '{"type":"com.example/new","body":{}}],"structuredContent":{"b":1,"a":[1.0]},"isError":false,'
        '"_meta":{"com.example/r":"s"},"future":[]},"y":2}',
    ),
    _case(
        "numbers that a decoder would change",
        _call("5", '{"big":123456789012345678901234567890,"odd":9007199254740993,"e":1E2,"f":1.10,"z":-0.0,"t":1e-7}'),
        _text("5", "n", ',"structuredContent":{"big":-123456789012345678901234567890,"e":1e+400,"f":0.10,"z":-0}'),
    ),
    _case(
        "escapes that an encoder would change",
        _call("6", '{"s":"\\u00e9\\/\\ud83d\\ude00\\u0000\\b\\u007f","u":"\u00e9\U0001f600\x7f","lone":"\\ud800"}'),
        _text("6", "\\u003cb\\u003e \\/ \\uD83D\\uDE00 \U0001f600 \\ud800"),
    ),
    _case(
        "line separators inside strings",
        _call("7", '{"s":"a\u2028b\u2029c\u0085d\x0b"}'.replace("\x0b", "\\u000b")),
        _text("7", "a\u2028b\u2029c\u0085d"),
    ),
    _case(
        "white space between tokens",
        '  { "jsonrpc" : "2.0" , "id" : 8 ,\t"method" : "tools/call" , "params" : { "name" : "look" } }  ',
        '\t{ "jsonrpc" : "2.0" , "id" : 8 , "result" : { "content" : [ ] } } ',
    ),
    _case(
        "the id at the end",
        '{"method":"tools/call","params":{"name":"look","arguments":{"id":1}},"jsonrpc":"2.0","id":9}',
        '{"result":{"content":[{"type":"text","text":"{\\"id\\":1}"}],"id":4},"jsonrpc":"2.0","id":9}',
    ),
    _case("the version at the end", _call("10"), '{"id":10,"result":{"content":[]},"jsonrpc":"2.0"}'),
    _case("an id that is text", _call('"call-\u00e9"'), _text('"call-\u00e9"', "ok")),
    _case("an id with an escape", _call('"a\\u0062"'), _text('"ab"', "ok")),
    _case("a negative id", _call("-7"), _text("-7", "ok")),
    _case("an id beyond 2^53", _call("9007199254740995"), _text("9007199254740995", "ok")),
    _case("duplicate members", _call("11", '{"a":1,"a":2}'), _text("11", "ok", ',"x":1,"x":2')),
    _case(
        "an error with code and data",
        _call("12", '{"fail":true}'),
        '{"jsonrpc":"2.0","id":12,"error":{"code":-32055,"message":"boom","data":{"retryable":true,"opId":"o-1"},"x":1}}',
    ),
    _case("a failed tool", _call("13", '{"fail":1}'), _text("13", "Error executing tool look", ',"isError":true')),
    _case("an empty result", '{"jsonrpc":"2.0","id":14,"method":"ping"}', '{"jsonrpc":"2.0","id":14,"result":{}}'),
    _case(
        "an unknown method",
        '{"jsonrpc":"2.0","id":15,"method":"com.example/do","params":[1,{"a":1.0}]}',
        '{"jsonrpc":"2.0","id":15,"error":{"code":-32601,"message":"Method not found"}}',
    ),
    _case(
        "binary content",
        _call("16", f'{{"blob":"{base64.b64encode(bytes(range(256))).decode()}"}}'),
        f'{{"jsonrpc":"2.0","id":16,"result":{{"content":[{{"type":"image","mimeType":"image/png","data":'
        f'"{base64.b64encode(bytes(range(256)) * 64).decode()}"}}]}}}}',
    ),
    _case("a large result", _call("17"), _text("17", "\u00e9\\n{}" * 1_000_000)),
    _case("large arguments", _call("18", json.dumps({"text": "x\ny" * 500_000})), _text("18", "ok")),
    _case(
        "progress",
        _call("19", more=',"_meta":{"progressToken":"tok"}'),
        '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"tok","progress":0.50,"total":1}}',
        '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"tok","progress":1,"x":"y"}}',
        _text("19", "ok"),
    ),
    _case(
        "notifications that nobody knows",
        _call("20"),
        '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}',
        '{"method":"notifications/message","params":{"level":"info","data":{"n":1.0}},"jsonrpc":"2.0"}',
        '{"jsonrpc":"2.0","method":"notifications/com.example/odd","params":{"id":1,"result":{}}}',
        _text("20", "ok"),
    ),
    _case(
        "questions to the client",
        _call("21"),
        '{"jsonrpc":"2.0","id":0,"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1,"x":1.0}}',
        '{"method":"elicitation/create","params":{"message":"Sure?"},"jsonrpc":"2.0","id":"q-21"}',
        _text("21", "ok"),
        answers=(
            '{"jsonrpc":"2.0","id":0,"result":{"role":"assistant","content":{"type":"text","text":"hi","x":1.0}}}',
            '{"jsonrpc":"2.0","id":"q-21","error":{"code":-1,"message":"no","data":{"tools\\/call":1}}}',
        ),
    ),
    _case(
        "input required, in the stateless era",
        _call("22", more=f",{_ENVELOPE}"),
        '{"jsonrpc":"2.0","id":22,"result":{"resultType":"input_required","inputRequests":{"a":{"method":'
        '"elicitation/create","params":{"message":"Sure?"}}},"requestState":"c3RhdGU="}}',
    ),
    _case(
        "the continuation of that call",
        _call("23", more=f',"inputResponses":{{"a":{{"action":"accept"}}}},"requestState":"c3RhdGU=",{_ENVELOPE}'),
        _text("23", "done", ',"resultType":"complete"'),
    ),
    _case(
        "a resource",
        '{"jsonrpc":"2.0","id":24,"method":"resources/read","params":{"uri":"file:///a%20b#\u00e9"}}',
        '{"jsonrpc":"2.0","id":24,"result":{"contents":[{"uri":"file:///a%20b","blob":"AAEC","x":1}],"ttlMs":1}}',
    ),
)
