"""What a model says of itself, read in a process of its own: the server never imports torch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from interlace.core.errors import Reason, ServeError
from interlace.core.messages import Failure
from interlace.core.model import Model
from interlace.core.tensor import Signature
from interlace.device.link import Speech, WorkerLink
from interlace.device.partition import Link
from interlace.device.questions import Question
from interlace.device.spawner import Spawner
from interlace.device.wire import (
    Answer,
    Failed,
    FromWorker,
    Loaded,
    LoadModel,
    Setup,
    Starved,
    decode_from_worker,
)


@dataclass(frozen=True, slots=True)
class Description:
    """``weights_bytes`` are weights and constants; ``resident_bytes`` all that the model held."""

    signature: Signature
    weights_bytes: int
    resident_bytes: int


async def describe(
    model: Model,
    setup: Setup,
    spawner: Spawner,
    on_link: Callable[[Link], None],
    limit_s: float,
) -> Description:
    """Load a model in a scratch worker, ask what it is, and end the worker.

    ``on_link`` hears of the worker before it is started, so that its owner can close it.

    Raises:
        ServeError: the model does not load, or not in time; in the words of its format.
    """
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[Answer | Failure] = loop.create_future()

    def settle(answer: Answer | Failure) -> None:
        if not answered.done():
            answered.set_result(answer)

    def started(answer: Answer | Failure) -> None:
        if isinstance(answer, Failure | Failed):
            settle(answer)

    speech = Speech(decode_from_worker, _line)
    link: Link = WorkerLink(loop, setup.name, speech, lambda cause: None)
    on_link(link)
    try:
        link.start(spawner, setup, Question(started, limit_s, "start"))
        link.ask(LoadModel(model, ()), Question(settle, limit_s, f"load {model.key}"))
        answer = await answered
    finally:
        link.close("no longer needed")
    if isinstance(answer, Loaded):
        return Description(answer.signature, answer.weights_bytes, answer.resident_bytes)
    raise ServeError(Reason.BACKEND, getattr(answer, "detail", "the model did not load"))


def _line(frame: FromWorker) -> tuple[str, Answer] | None:
    return None if isinstance(frame, Starved) else ("", frame)
