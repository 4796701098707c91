"""Requests that the code of a model is to receive, and the list that it returns for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from interlace.core.request import CallContext
from interlace.core.sequence import SequenceStep, SequenceTerms
from interlace.formats.arrays import control_array
from interlace.formats.python_backend import api
from interlace.formats.python_backend.open_responses import OpenResponses
from interlace.formats.runner import Answer, CallModels, RequestInputs, TypedArray


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


def whole_sequence(terms: SequenceTerms, id: int, inputs: dict[str, TypedArray]) -> CallContext:
    """Make a request a sequence of its own: its control tensors, and what its client says."""
    for control in terms.controls:
        datatype, array = inputs[control.spec.name]
        value = control_array(control, SequenceStep(id, start=True, end=True), array.shape)
        inputs[control.spec.name] = TypedArray(datatype, value)
    flags = {"sequence_id": id, "sequence_start": True, "sequence_end": True}
    return CallContext("", json.dumps(flags))


def first_of_sequence(context: CallContext, id: int) -> tuple[CallContext, int | str]:
    """Make a request the first of a sequence of its own, with an id unless its client gave one."""
    given = json.loads(context.parameters or "{}")
    parameters = {"sequence_id": id} | given | {"sequence_start": True}
    return CallContext(context.id, json.dumps(parameters)), parameters["sequence_id"]


def wrong_list(responses: Any, requests: Sequence[api.InferenceRequest]) -> str:
    """What is wrong with the list of ``execute``, in Triton's words; empty if nothing is."""
    if not isinstance(responses, list):
        return f"Expected a list in the execute return, found type '{type(responses)}'."
    if len(responses) != len(requests):
        return (
            "Number of InferenceResponse objects do not match the number of InferenceRequest "
            f"objects. InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size "
            f"is:{len(responses)}"
        )
    for one, request in zip(responses, requests, strict=True):
        if request.rescheduled:
            if one is not None:
                return (
                    "Expected a None object in the execute function return list for rescheduled "
                    f"request, found type '{type(one)}'."
                )
            continue
        if not isinstance(one, api.InferenceResponse) and not (one is None and request.responds):
            return (
                "Expected an 'InferenceResponse' object in the execute function return list, "
                f"found type '{type(one)}'."
            )
    return ""
