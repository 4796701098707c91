"""A picture of any size as the text detector takes it: sides multiples of 32, blue first, -1..1."""

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image

STRIDE = 32  #: the detector halves its input five times
SIDE_MAX = 960


def planes(picture):
    """Pixels (height, width, 3), red first, to FP32 (3, height, width), blue first."""
    ratio = min(1.0, SIDE_MAX / max(picture.shape))
    height, width = (max(STRIDE, round(n * ratio / STRIDE) * STRIDE) for n in picture.shape[:2])
    resized = Image.fromarray(picture).resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(resized, np.float32)[:, :, ::-1]
    return np.ascontiguousarray((pixels / 127.5 - 1.0).transpose(2, 0, 1))


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            picture = pb_utils.get_input_tensor_by_name(request, "picture").as_numpy()
            tensors = [pb_utils.Tensor("x", planes(picture))]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
