"""Malformed HTTP/1.1: named cases with the answer each must get, and what browsers may send."""

import asyncio
import re
from typing import Final

from bench.attack.attack import VICTIM, Ground, Result
from bench.attack.calls import HttpCaller, body
from bench.attack.stand import Stand
from bench.attack.wire import exchange

_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")

_BODY: Final = body([1.0, 2.0, 3.0, 4.0])
_PATH: Final = f"/v2/models/{VICTIM.model}/infer".encode()
_ASK: Final = b"POST " + _PATH + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n"
_SIZE: Final = b"Content-Length: %d\r\n" % len(_BODY)
_CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
_CHUNKS: Final = b"%x\r\n%s\r\n0\r\n\r\n" % (len(_BODY), _BODY)


def _with(*lines: bytes, data: bytes = _BODY) -> bytes:
    return _ASK + b"".join(lines) + b"\r\n" + data


def _numbered(parameters: bytes, shape: bytes = b"[1,4]") -> bytes:
    """A request whose JSON has these parameters and this shape, with its right length."""
    data = (
        b'{"parameters":{%s},"inputs":[{"name":"x","datatype":"FP32","shape":%s,"data":[1,2,3,4]}]}'
    )
    said = data % (parameters, shape)
    return _with(b"Content-Length: %d\r\n" % len(said), data=said)


#: Requests that could be read in two ways, or that name impossible sizes: refused, never served.
REFUSED: Final[dict[str, bytes]] = {
    "length and chunked": _with(_SIZE, _CHUNKED, data=_CHUNKS),
    "chunked and length": _with(_CHUNKED, _SIZE, data=_CHUNKS),
    "two lengths": _with(_SIZE, b"Content-Length: 5\r\n"),
    "a list of lengths": _with(b"Content-Length: 5, 5\r\n"),
    "negative length": _with(b"Content-Length: -1\r\n"),
    "length with a plus": _with(b"Content-Length: +5\r\n"),
    "length in hex": _with(b"Content-Length: 0x10\r\n"),
    "length with letters": _with(b"Content-Length: 5x\r\n"),
    "length of 400 digits": _with(b"Content-Length: " + b"9" * 400 + b"\r\n"),
    "length beyond 63 bits": _with(b"Content-Length: 9223372036854775808\r\n"),
    "empty length": _with(b"Content-Length: \r\n"),
    "unknown coding": _with(b"Transfer-Encoding: cow\r\n"),
    "chunked not last": _with(b"Transfer-Encoding: chunked, gzip\r\n", data=_CHUNKS),
    "chunked twice": _with(b"Transfer-Encoding: chunked, chunked\r\n", data=_CHUNKS),
    "chunked with a tail": _with(b"Transfer-Encoding: chunkedx\r\n", data=_CHUNKS),
    "space before colon": _with(b"Content-Length : %d\r\n" % len(_BODY)),
    "tab before colon": _with(b"Content-Length\t: %d\r\n" % len(_BODY)),
    "folded header": _with(b"X-A: b\r\n folded: c\r\n", _SIZE),
    "header without colon": _with(b"nonsense\r\n", _SIZE),
    "empty header name": _with(b": x\r\n", _SIZE),
    "null in header": _with(b"X-A: b\0c\r\n", _SIZE),
    "bare CR in header": _with(b"X-A: b\rc\r\n", _SIZE),
    "chunk size with a sign": _with(_CHUNKED, data=b"+5\r\nhello\r\n0\r\n\r\n"),
    "chunk size in letters": _with(_CHUNKED, data=b"zz\r\nhello\r\n0\r\n\r\n"),
    "chunk size beyond 64 bits": _with(_CHUNKED, data=b"f" * 17 + b"\r\nhello\r\n0\r\n\r\n"),
    "chunk without its end": _with(_CHUNKED, data=b"5\r\nhelloX\r\n0\r\n\r\n"),
    "no host": b"POST " + _PATH + b" HTTP/1.1\r\n" + _SIZE + b"\r\n" + _BODY,
    "two hosts": _with(b"Host: b\r\n", _SIZE),
    "HTTP/3.0": _ASK.replace(b"HTTP/1.1", b"HTTP/3.0") + _SIZE + b"\r\n" + _BODY,
    "no version": b"POST " + _PATH + b"\r\n\r\n",
    "null in target": _ASK.replace(_PATH, _PATH + b"\0") + _SIZE + b"\r\n" + _BODY,
    "target without slash": _ASK.replace(_PATH, b"infer") + _SIZE + b"\r\n" + _BODY,
    "a head of 100 KB": _with(b"X-A: " + b"a" * 100_000 + b"\r\n", _SIZE),
    "20,000 headers": _with(b"".join(b"X-%d: 1\r\n" % n for n in range(20_000)), _SIZE),
    "empty body": _with(b"Content-Length: 0\r\n", data=b""),
    "JSON of brackets": _with(b"Content-Length: 200000\r\n", data=b"[" * 200_000),
    "shape beyond 63 bits": _numbered(b"", b"[" + b"9" * 20 + b"]"),
    "shape of 5,000 digits": _numbered(b"", b"[" + b"9" * 5000 + b"]"),
    "shapes whose product has 5,000 digits": _numbered(
        b"", b"[" + b",".join([b"9" * 18] * 280) + b"]"
    ),
    "negative shape": _numbered(b"", b"[-1,4]"),
    "shape 1e400": _numbered(b"", b"[1e400,4]"),
    "SLO of 400 digits": _numbered(b'"slo_ms":' + b"9" * 400),
    "SLO below zero": _numbered(b'"slo_ms":-5'),
    "SLO of a string": _numbered(b'"slo_ms":"fast"'),
    "timeout of 400 digits": _numbered(b'"timeout":' + b"9" * 400),
    "path with dots": _ASK.replace(_PATH, b"/v2/../../etc/infer") + _SIZE + b"\r\n" + _BODY,
    "unknown content coding": _with(_SIZE, b"Content-Encoding: br\r\n"),
    "gzip that is none": _with(_SIZE, b"Content-Encoding: gzip\r\n"),
    "deflate cut off": _with(
        b"Content-Length: 3\r\nContent-Encoding: deflate\r\n", data=b"x\x9c\x03"
    ),
}  # fmt: skip
#: Odd but right: they are served.
SERVED: Final[dict[str, bytes]] = {
    "plain": _with(_SIZE),
    "chunked": _with(_CHUNKED, data=_CHUNKS),
    "chunk extension": _with(_CHUNKED, data=_CHUNKS.replace(b"\r\n", b";a=b\r\n", 1)),
    "header names in capitals": _with(_SIZE.upper()),
    "no space after the colon": _with(_SIZE.replace(b": ", b":")),
}


def named(ground: Ground, stand: Stand) -> Result:
    """Every named case gets one answer of its kind; none gets two."""
    result = Result(len(REFUSED) + len(SERVED))
    for name, data in {**REFUSED, **SERVED}.items():
        sent = asyncio.run(exchange(stand.http_port, data, 1.5))
        statuses = [int(one) for one in _STATUS.findall(sent.answer)]
        if name in SERVED and statuses != [200]:
            result.broken[f"{name}: {statuses}, not served"] += 1
        if name in REFUSED and not (sent.closed and not statuses) and not _refused(statuses):
            result.broken[f"{name}: {statuses or 'nothing, and not closed'}"] += 1
    return result


def _refused(statuses: list[int]) -> bool:
    """One refusal; what follows in the body is not another request."""
    return len(statuses) == 1 and (400 <= statuses[0] < 500 or statuses[0] in (501, 505))


def browser(ground: Ground, stand: Stand) -> Result:
    """Cross-site POSTs and foreign Hosts are refused with 403; the same without are served."""
    caller = HttpCaller(stand.http_port)
    unload = f"/v2/repository/models/{VICTIM.model}/unload"
    infer = f"/v2/models/{VICTIM.model}/infer"
    row = body([1.0, 2.0, 3.0, 4.0])
    foreign = {"Origin": "https://evil.example", "Sec_Fetch_Site": "cross-site"}
    asked = {
        "unload, cross-site": (unload, foreign, 403),
        "unload, foreign Origin": (unload, {"Origin": "https://evil.example"}, 403),
        "infer, cross-site": (infer, foreign, 403),
        "index, foreign Host": ("/v2/repository/index", {"Host": "evil.example"}, 403),
        "infer": (infer, {}, 200),
        "infer, localhost": (infer, {"Host": f"localhost:{stand.http_port}"}, 200),
    }
    result = Result(len(asked))
    for name, (path, headers, want) in asked.items():
        got = caller.post(path, row, **headers)[0]
        result.figures[name] = got
        result.broken[f"{name}: {got}, not {want}"] += got != want
    caller.post(f"/v2/repository/models/{VICTIM.model}/load", b"{}")
    return result
