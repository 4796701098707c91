"""Lines of text from the recogniser's scores, by greedy CTC."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

BLANK = 0  #: class of CTC that stands for no character


def decode(scores, alphabet):
    """(steps, classes) to text and confidence; repeats are one character, blanks part repeats."""
    best = scores.argmax(axis=1)
    kept = (best != BLANK) & (best != np.concatenate(([BLANK], best[:-1])))
    text = "".join(alphabet[index] for index in best[kept])
    return text, float(scores.max(axis=1)[kept].mean()) if kept.any() else 0.0


class TritonPythonModel:
    def initialize(self, args):
        labels = Path(args["model_repository"]) / "labels.txt"
        self.alphabet = labels.read_text(encoding="utf-8").removesuffix("\n").split("\n")

    def execute(self, requests):
        responses = []
        for request in requests:
            scores = pb_utils.get_input_tensor_by_name(request, "scores").as_numpy()
            found = [decode(one, self.alphabet) for one in scores]
            texts = np.array([text.encode() for text, _ in found], np.object_)
            confidences = np.array([confidence for _, confidence in found], np.float32)
            tensors = [pb_utils.Tensor("text", texts), pb_utils.Tensor("confidence", confidences)]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
