"""Replies of the data plane as ModelInferResponse messages: a head made once, outputs in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from interlace.core.deployment_key import DeploymentKey
from interlace.core.errors import Reason, ServeError
from interlace.core.request import Reply
from interlace.core.tensor import BYTES, Span, Tensor
from interlace.proto.messages import ModelInferResponse
from interlace.server.cache import GenerationalCache
from interlace.server.dataplane.call import classified
from interlace.server.dataplane.plane import output_order
from interlace.server.grpc.frame_writer import Buffer
from interlace.server.grpc.infer_head import InferTemplate, SharedMemoryRange
from interlace.server.model_table import ModelTable
from interlace.server.shared_memory import Regions
from interlace.shm.arena import ArenaMap

_HEADS: Final = 1024
#: Of an output that lies in client shared memory: its position, region, offset and size.
StoredOutputs = tuple[tuple[int, str, int, int], ...]


class ResponseEncoder:
    """Heads of responses (names, types, shapes) and the bytes of their outputs."""

    def __init__(self, arenas: ArenaMap, regions: Regions, table: ModelTable) -> None:
        self._view = arenas.view
        self._regions = regions
        self._table = table
        self._heads: GenerationalCache[object, bytes] = GenerationalCache(_HEADS)

    def encode(self, template: InferTemplate, reply: Reply) -> tuple[bytes, list[Buffer]]:
        """The head and the outputs of a reply that has outputs.

        Raises:
            ServeError: an output is missing, cannot be ranked, or does not fit its region.
            ValueError: the outputs are gone: the process that held them has ended.
        """
        outputs = reply.outputs
        if template.outputs:
            outputs = tuple([outputs[i] for i in output_order(template.outputs, outputs)])
        view = self._view
        views: list[Buffer] = [view(tensor.span) for tensor in outputs]
        if template.ranked:
            outputs = self._ranked(template, outputs, views)
        stored: StoredOutputs = ()
        if template.head.targets:
            stored = self._store(template.head.targets, outputs, views)
        key = (reply.request.model, stored, *[(t.name, t.datatype, t.shape) for t in outputs])
        head = self._heads.get(key)
        if head is None:
            head = _head(reply.request.model, outputs, stored)
            self._heads.put(key, head)
        return head, views

    def _ranked(
        self, template: InferTemplate, outputs: tuple[Tensor, ...], views: list[Buffer]
    ) -> tuple[Tensor, ...]:
        """The outputs, with classes in place of each that is wanted so; ``views`` likewise."""
        model = self._table.resolve(template.head.model, template.head.version).model
        shown = list(outputs)
        for position, wanted in enumerate(template.outputs):
            if not wanted.classes:
                continue
            tensor = outputs[position]
            view = memoryview(views[position])
            shape, views[position] = classified(model, tensor, view, wanted.classes)
            shown[position] = Tensor(tensor.name, BYTES, shape, Span(tensor.span.arena, 0, 0))
        return tuple(shown)

    def _store(
        self, targets: dict[str, SharedMemoryRange], outputs: Sequence[Tensor], views: list[Buffer]
    ) -> StoredOutputs:
        """Write outputs to client shared memory; where each went."""
        stored = []
        for position, tensor in enumerate(outputs):
            target = targets.get(tensor.name)
            if target is None:
                continue
            nbytes = len(views[position])
            if nbytes > target.nbytes:
                raise ServeError(
                    Reason.BAD_INPUT,
                    f"shared memory size specified with the request for output '{tensor.name}' "
                    f"({target.nbytes} bytes) should be at least {nbytes} bytes to hold the "
                    f"results",
                )
            self._regions.write(target.region, target.offset, views[position])
            views[position] = b""
            stored.append((position, target.region, target.offset, nbytes))
        return tuple(stored)


def _head(model: str, outputs: Sequence[Tensor], stored: StoredOutputs) -> bytes:
    key = DeploymentKey.parse(model)
    message = ModelInferResponse(model_name=key.name, model_version=str(key.version))
    for tensor in outputs:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    for position, region, offset, nbytes in stored:
        parameters = message.outputs[position].parameters
        parameters["shared_memory_region"].string_param = region
        parameters["shared_memory_byte_size"].int64_param = nbytes
        if offset:
            parameters["shared_memory_offset"].int64_param = offset
    data: bytes = message.SerializeToString()
    return data
