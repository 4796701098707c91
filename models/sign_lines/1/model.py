"""Lines of text in a picture, from the detector's probabilities: boxes, and the lines cut out.

Lines are taken to be level, so boxes are upright rectangles.
"""

from typing import NamedTuple

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image

TEXT_ABOVE = 0.3  #: probability from which a pixel is text
BOX_ABOVE = 0.5  #: mean probability from which a box is kept
UNCLIP = 1.6  #: the detector marks the core of a line; this is how much larger the line is
SMALLEST = 3

LINE_HEIGHT = 48
DIRECTION_WIDTH = 192
#: Lines are padded to a multiple of this, so that many have the same shape and share a batch.
STRIP_STEP = 320


class Box(NamedTuple):
    """Pixels of the picture: left and top belong to the box, right and bottom do not."""

    left: int
    top: int
    right: int
    bottom: int


def find_boxes(probability, width, height):
    """Boxes in a picture of this size around lines of text, from top to bottom, left to right."""
    scale = width / probability.shape[1], height / probability.shape[0]
    boxes = []
    for box in components(_dilated(probability > TEXT_ABOVE)):
        if min(box.right - box.left, box.bottom - box.top) < SMALLEST:
            continue
        if probability[box.top : box.bottom, box.left : box.right].mean() >= BOX_ABOVE:
            boxes.append(_scaled(_unclipped(box), scale, (width, height)))
    return sorted(boxes, key=lambda box: (box.top, box.left))


def _dilated(mask):
    # With a 2 x 2 square, which joins letters that nearly touch.
    grown = mask.copy()
    grown[1:] |= mask[:-1]
    grown[:, 1:] |= grown[:, :-1].copy()
    return grown


def _unclipped(box):
    # Differentiable Binarization, section 3.4: distance = area * ratio / perimeter.
    width, height = box.right - box.left, box.bottom - box.top
    grow = round(width * height * UNCLIP / (2 * (width + height)))
    return Box(box.left - grow, box.top - grow, box.right + grow, box.bottom + grow)


def _scaled(box, scale, size):
    left, right = (min(max(0, round(x * scale[0])), size[0]) for x in (box.left, box.right))
    top, bottom = (min(max(0, round(y * scale[1])), size[1]) for y in (box.top, box.bottom))
    return Box(left, top, right, bottom)


def components(mask):
    """Bounding boxes of the connected areas of a boolean (height, width) mask, diagonals too.

    Rows are taken as runs; a run joins every area it touches in the row above.
    """
    boxes = {}
    above = []  # start, end and area of each run
    for y, row in enumerate(mask):
        runs = []
        for start, end in _runs(row):
            touched = {area for left, right, area in above if left <= end and start <= right}
            area = min(touched, default=len(boxes) and max(boxes) + 1)
            box = Box(start, y, end, y + 1)
            for other in touched:
                box = _union(box, boxes.pop(other))
            boxes[area] = box
            above = [(a, b, area if c in touched else c) for a, b, c in above]
            runs = [(a, b, area if c in touched else c) for a, b, c in runs]
            runs.append((start, end, area))
        above = runs
    return list(boxes.values())


def _runs(row):
    edges = np.flatnonzero(np.diff(row.astype(np.int8), prepend=0, append=0))
    return ((int(start), int(end)) for start, end in edges.reshape(-1, 2))


def _union(one, other):
    left, top = min(one.left, other.left), min(one.top, other.top)
    return Box(left, top, max(one.right, other.right), max(one.bottom, other.bottom))


def line_width(box):
    """The width of a line at the models' height."""
    return max(1, -(-(box.right - box.left) * LINE_HEIGHT // max(1, box.bottom - box.top)))


def padded(crop, own, width):
    """A line at the models' height, narrowed if it must be, black to its right: (3, 48, width)."""
    own = min(width, own)
    line = np.zeros((3, LINE_HEIGHT, width), np.float32)
    pixels = np.asarray(crop.resize((own, LINE_HEIGHT), Image.Resampling.BILINEAR), np.float32)
    line[:, :, :own] = (pixels[:, :, ::-1] / 127.5 - 1.0).transpose(2, 0, 1)
    return line


def cut(picture, probability):
    """Boxes (lines, 4), lines (lines, 3, 48, 192), strips (lines, 3, 48, width of the longest)."""
    image = Image.fromarray(picture)
    boxes = find_boxes(probability, image.width, image.height)
    widths = [line_width(box) for box in boxes]
    longest = -(-max(widths, default=1) // STRIP_STEP) * STRIP_STEP
    lines = np.zeros((len(boxes), 3, LINE_HEIGHT, DIRECTION_WIDTH), np.float32)
    strips = np.zeros((len(boxes), 3, LINE_HEIGHT, longest), np.float32)
    for place, (box, width) in enumerate(zip(boxes, widths, strict=True)):
        crop = image.crop(box)
        lines[place] = padded(crop, width, DIRECTION_WIDTH)
        strips[place] = padded(crop, width, longest)
    return np.array(boxes, np.int32).reshape(-1, 4), lines, strips


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            picture = pb_utils.get_input_tensor_by_name(request, "picture").as_numpy()
            probability = pb_utils.get_input_tensor_by_name(request, "probability").as_numpy()[0]
            names = ("box", "line", "strip")
            named = zip(names, cut(picture, probability), strict=True)
            tensors = [pb_utils.Tensor(name, array) for name, array in named]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
