"""One of the three models behind MLServer; which one is the model's name."""

import os
import sys

sys.path.insert(0, os.environ["HARNESS"])
import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

import models


class Runtime(MLModel):
    """Numpy in, numpy out."""

    async def load(self):
        self.run = models.load(self.name)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        y = self.run(NumpyCodec.decode_input(payload.inputs[0]))
        output = NumpyCodec.encode_output("OUTPUT", np.ascontiguousarray(y))
        return InferenceResponse(model_name=self.name, outputs=[output])
