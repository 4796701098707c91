"""A request that the code of a model is to receive, perhaps once more."""

from __future__ import annotations

from interlace.formats.python_backend import api
from interlace.formats.python_backend.open_responses import OpenResponses
from interlace.formats.runner import Answer, CallModels, RequestInputs


class WaitingRequest:
    """A request that ``execute`` is to receive, perhaps once more."""

    def __init__(
        self,
        received: api.InferenceRequest,
        asked: RequestInputs,
        answers: OpenResponses,
        index: int,
        call: CallModels | None,
    ) -> None:
        self.received = received
        self.asked = asked
        self.answers = answers
        self.call = call
        self.begun = False  #: ``execute`` received it before
        self.alone = False  #: it may have failed others
        self._index = index

    @property
    def open(self) -> bool:
        """Whether it has not ended."""
        return self.answers.open(self._index)

    def end(self, answer: Answer) -> None:
        """Answer it."""
        self.answers.end(self._index, answer)

    @property
    def rows(self) -> int:
        """The rows of its inputs, if there are rows."""
        return max((one.shape[0] for one in self.asked.inputs.values() if one.ndim), default=1)

    @property
    def shape(self) -> dict[str, tuple[int, ...]]:
        """The dims of its inputs without the rows."""
        return {name: one.shape[1:] for name, one in self.asked.inputs.items()}
