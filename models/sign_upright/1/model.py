"""Turns lines of text round that stand on their heads."""

import triton_python_backend_utils as pb_utils

TURNED_ABOVE = 0.9  #: probability from which a line is turned round


def upright(strips, boxes, directions):
    """Strips (lines, 3, 48, width), padded on the right, turned round within their own widths."""
    turned = directions[:, 1] > TURNED_ABOVE
    found = strips.copy()
    for place in turned.nonzero()[0]:
        left, top, right, bottom = (int(side) for side in boxes[place])
        own = -(-(right - left) * strips.shape[2] // max(1, bottom - top))
        own = min(max(1, own), strips.shape[3])
        found[place, :, :, :own] = strips[place, :, ::-1, :own][:, :, ::-1]
    return found, turned


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            names = ("strip", "box", "direction")
            inputs = [pb_utils.get_input_tensor_by_name(request, n).as_numpy() for n in names]
            x, turned = upright(*inputs)
            tensors = [pb_utils.Tensor("x", x), pb_utils.Tensor("turned", turned)]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
