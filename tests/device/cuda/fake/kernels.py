"""Our kernels, emulated: the same arguments and effects, every access checked."""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from interlace.device.cuda.memory.parameters import BEGAN, ENDED, SEQUENCE
from tests.device.cuda.fake.memory import Memory


class Launch(NamedTuple):
    """Where a kernel runs."""

    memory: Memory
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    sms: frozenset[int]


Emulated = Callable[..., None]


def gather_rows(
    launch: Launch, table: int, rows_word: int, target: int, row_bytes: int, capacity_rows: int
) -> None:
    memory, rows = launch.memory, launch.memory.word(rows_word)
    for row in range(min(rows, capacity_rows)):
        memory.copy(target + row * row_bytes, memory.word(table + 8 * row), row_bytes)
    if rows < capacity_rows:
        memory.zero(target + rows * row_bytes, (capacity_rows - rows) * row_bytes)


def embed_rows(
    launch: Launch,
    indices: int,
    index_bytes: int,
    count: int,
    table_word: int,
    target: int,
    row_bytes: int,
    table_rows: int,
) -> None:
    memory, table = launch.memory, launch.memory.word(table_word)
    seen = memory.read(indices, count * index_bytes)
    for at in range(count):
        index = int.from_bytes(seen[at * index_bytes :][:index_bytes], "little", signed=True)
        row = min(max(index, 0), table_rows - 1)
        memory.copy(target + at * row_bytes, table + row * row_bytes, row_bytes)


def publish(launch: Launch, source: int, target_word: int, rows_word: int, row_bytes: int) -> None:
    memory = launch.memory
    memory.copy(memory.word(target_word), source, memory.word(rows_word) * row_bytes)


def signal(launch: Launch, flag: int, sequence_word: int) -> None:
    launch.memory.store(flag, launch.memory.word(sequence_word))


def begin(launch: Launch, blocks: int, words: int, turn_word: int, target: int) -> None:
    memory, turn = launch.memory, launch.memory.word(turn_word)
    mine = blocks + turn % 2 * words * 8
    for at in range(words):
        memory.store(target + 8 * at, memory.word(mine + 8 * at))
    memory.store(mine + 8 * BEGAN, time.perf_counter_ns())
    memory.store(target + 8 * ENDED, mine + 8 * ENDED)
    memory.store(turn_word, turn + 1)


def finish(launch: Launch, flag: int, block: int) -> None:
    memory = launch.memory
    memory.store(memory.word(block + 8 * ENDED), time.perf_counter_ns())
    memory.store(flag, memory.word(block + 8 * SEQUENCE))


def smid(launch: Launch, sms: int, stay_ns: int) -> None:
    order = sorted(launch.sms)
    for block in range(launch.grid[0]):
        launch.memory.store(sms + 8 * block, order[block % len(order)])


def spin(launch: Launch, stay_ns: int, turns: int) -> None:
    launch.memory.store(turns, launch.memory.word(turns) + max(1, stay_ns // 100))


def stream_reads(launch: Launch, source: int, nbytes: int, stay_ns: int, moved: int) -> None:
    """All readers: the first and the last words are read, one whole pass is counted."""
    memory = launch.memory
    memory.word(source), memory.word(source + nbytes - 8)
    memory.store(moved, memory.word(moved) + nbytes)


#: By name, with the number of their arguments.
OURS: Final[dict[str, tuple[Emulated, int]]] = {
    "gather_rows": (gather_rows, 5),
    "embed_rows": (embed_rows, 7),
    "publish": (publish, 4),
    "signal": (signal, 2),
    "begin": (begin, 4),
    "finish": (finish, 2),
    "smid": (smid, 2),
    "spin": (spin, 2),
    "l2_stream": (stream_reads, 4),
    "dram_stream": (stream_reads, 4),
}
