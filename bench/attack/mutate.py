"""Damaged copies of bytes: what a fuzzer does to a request or a frame."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

_SPICES: Final = (
    b"\r\n", b"\0", b"\xff" * 8, b"9" * 5000, b"-1", b"1e400", b"[" * 300, b"{", b'"', b": ",
    b"Transfer-Encoding: chunked\r\n", b"Content-Length: 0\r\n", b"%00%2e%2e/", b"\x80\x80\x80",
)  # fmt: skip


def damaged(seeds: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """``count`` copies of seeds, each with one to four pieces changed, dropped, moved or added."""
    random_ = random.Random(seed)
    for _ in range(count):
        data = bytearray(random_.choice(seeds))
        for _ in range(random_.randint(1, 4)):
            _damage(data, random_)
        yield bytes(data)


def _damage(data: bytearray, random_: random.Random) -> None:
    if not data:
        return
    at = random_.randrange(len(data))
    length = random_.choice((1, 1, 2, 4, 16, 64))
    kind = random_.randrange(6)
    if kind == 0:
        data[at] = random_.randrange(256)
    elif kind == 1:
        data[at] ^= 1 << random_.randrange(8)
    elif kind == 2:
        del data[at : at + length]
    elif kind == 3:
        data[at:at] = data[at : at + length]
    elif kind == 4:
        data[at:at] = random_.choice(_SPICES)
    else:
        del data[at:]
