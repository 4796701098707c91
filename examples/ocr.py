"""Text in pictures, read with three served models: what a client does around them.

The models are PP-OCRv4's. A detector marks where text is, a classifier says whether a line stands
on its head, a recogniser spells it. Everything here is numpy and Pillow; how the models are reached
is left to the caller's ``infer``. Lines are taken to be level, so boxes are upright rectangles.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from PIL import Image

DETECTOR, DIRECTION, RECOGNISER = "detector", "direction", "recogniser"

STRIDE = 32  #: the detector halves its input five times
SIDE_MAX = 960
TEXT_ABOVE = 0.3  #: probability from which a pixel is text
BOX_ABOVE = 0.5  #: mean probability from which a box is kept
UNCLIP = 1.6  #: the detector marks the core of a line; this is how much larger the line is
SMALLEST = 3

LINE_HEIGHT = 48
DIRECTION_WIDTH = 192
TURNED_ABOVE = 0.9
#: Lines are padded to a multiple of this, so that many have the same shape and share a batch.
RECOGNISER_STEP = 320
BLANK = 0  #: class of CTC that stands for no character

Array = np.ndarray[Any, Any]


class Infer(Protocol):
    """One call of a served model: images (rows, 3, height, width) FP32 to its only output."""

    def __call__(self, model: str, images: Array) -> Array: ...


class Box(NamedTuple):
    """Pixels of the picture: left and top belong to the box, right and bottom do not."""

    left: int
    top: int
    right: int
    bottom: int


class Line(NamedTuple):
    """One line of text, how sure the recogniser is of it (0..1), and where it stands."""

    text: str
    confidence: float
    box: Box
    turned: bool


def read_text(picture: Image.Image, infer: Infer, alphabet: Sequence[str]) -> list[Line]:
    """Every line of text in a picture, from top to bottom.

    ``alphabet`` are the recogniser's classes; it serves them as ``labels:OUTPUT`` among the
    parameters of its config.
    """
    boxes = find_boxes(picture, infer)
    if not boxes:
        return []
    crops = [picture.convert("RGB").crop(box) for box in boxes]
    turned = find_turned(crops, infer)
    upright = [
        crop.transpose(Image.Transpose.ROTATE_180) if wrong else crop
        for crop, wrong in zip(crops, turned, strict=True)
    ]
    texts = spell(upright, infer, alphabet)
    return [
        Line(text, confidence, box, wrong)
        for (text, confidence), box, wrong in zip(texts, boxes, turned, strict=True)
    ]


# ------------------------------------------------------------------------------------ detector


def find_boxes(picture: Image.Image, infer: Infer) -> list[Box]:
    """Boxes around lines of text, from top to bottom, then from left to right."""
    size = _detector_size(picture.size)
    probability = infer(DETECTOR, normalise(picture.resize(size, Image.Resampling.BILINEAR))[None])[
        0, 0
    ]
    mask = _dilated(probability > TEXT_ABOVE)
    scale = picture.width / size[0], picture.height / size[1]
    boxes = []
    for box in components(mask):
        if min(box.right - box.left, box.bottom - box.top) < SMALLEST:
            continue
        if probability[box.top : box.bottom, box.left : box.right].mean() >= BOX_ABOVE:
            boxes.append(_scaled(_unclipped(box), scale, picture.size))
    return sorted(boxes, key=lambda box: (box.top, box.left))


def _detector_size(size: tuple[int, int]) -> tuple[int, int]:
    ratio = min(1.0, SIDE_MAX / max(size))
    width, height = (max(STRIDE, round(side * ratio / STRIDE) * STRIDE) for side in size)
    return width, height


def _dilated(mask: Array) -> Array:
    # With a 2 x 2 square, which joins letters that nearly touch.
    grown = mask.copy()
    grown[1:] |= mask[:-1]
    grown[:, 1:] |= grown[:, :-1].copy()
    return grown


def _unclipped(box: Box) -> Box:
    # Differentiable Binarization, section 3.4: distance = area * ratio / perimeter.
    width, height = box.right - box.left, box.bottom - box.top
    grow = round(width * height * UNCLIP / (2 * (width + height)))
    return Box(box.left - grow, box.top - grow, box.right + grow, box.bottom + grow)


def _scaled(box: Box, scale: tuple[float, float], size: tuple[int, int]) -> Box:
    left, right = (min(max(0, round(x * scale[0])), size[0]) for x in (box.left, box.right))
    top, bottom = (min(max(0, round(y * scale[1])), size[1]) for y in (box.top, box.bottom))
    return Box(left, top, right, bottom)


def components(mask: Array) -> list[Box]:
    """Bounding boxes of the connected areas of a boolean (height, width) mask, diagonals too.

    Rows are taken as runs; a run joins every area it touches in the row above.
    """
    boxes: dict[int, Box] = {}
    above: list[tuple[int, int, int]] = []  # start, end and area of each run
    for y, row in enumerate(mask):
        runs: list[tuple[int, int, int]] = []
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


def _runs(row: Array) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(row.astype(np.int8), prepend=0, append=0))
    return ((int(start), int(end)) for start, end in edges.reshape(-1, 2))


def _union(one: Box, other: Box) -> Box:
    return Box(
        min(one.left, other.left),
        min(one.top, other.top),
        max(one.right, other.right),
        max(one.bottom, other.bottom),
    )


# ------------------------------------------------------------------- classifier and recogniser


def find_turned(crops: Sequence[Image.Image], infer: Infer) -> list[bool]:
    """Which lines stand on their heads; all are asked in one request."""
    lines = np.stack([padded(crop, DIRECTION_WIDTH) for crop in crops])
    scores = infer(DIRECTION, lines)  # (rows, 2): upright, turned
    return [bool(score[1] > TURNED_ABOVE) for score in scores]


def spell(
    crops: Sequence[Image.Image], infer: Infer, alphabet: Sequence[str]
) -> list[tuple[str, float]]:
    """Text and confidence of each line; lines of one padded width go in one request."""
    widths = [_recogniser_width(crop) for crop in crops]
    texts: dict[int, tuple[str, float]] = {}
    for width in sorted(set(widths)):
        places = [place for place, own in enumerate(widths) if own == width]
        scores = infer(RECOGNISER, np.stack([padded(crops[place], width) for place in places]))
        for place, score in zip(places, scores, strict=True):
            texts[place] = decode(score, alphabet)
    return [texts[place] for place in range(len(crops))]


def decode(scores: Array, alphabet: Sequence[str]) -> tuple[str, float]:
    """Greedy CTC: (steps, classes) to text; repeats are one character, blanks part repeats."""
    best = scores.argmax(axis=1)
    kept = (best != BLANK) & (best != np.concatenate(([BLANK], best[:-1])))
    text = "".join(alphabet[index] for index in best[kept])
    return text, float(scores.max(axis=1)[kept].mean()) if kept.any() else 0.0


def padded(crop: Image.Image, width: int) -> Array:
    """A line at the models' height, narrowed if it must be, black to its right: (3, 48, width)."""
    own = min(width, _line_width(crop))
    line = np.zeros((3, LINE_HEIGHT, width), np.float32)
    line[:, :, :own] = normalise(crop.resize((own, LINE_HEIGHT), Image.Resampling.BILINEAR))
    return line


def normalise(picture: Image.Image) -> Array:
    """Pixels as the models know them: blue, green, red; -1..1; (3, height, width)."""
    pixels = np.asarray(picture.convert("RGB"), np.float32)[:, :, ::-1]
    return np.ascontiguousarray((pixels / 127.5 - 1.0).transpose(2, 0, 1))


def _line_width(crop: Image.Image) -> int:
    return max(1, -(-crop.width * LINE_HEIGHT // crop.height))


def _recogniser_width(crop: Image.Image) -> int:
    return -(-_line_width(crop) // RECOGNISER_STEP) * RECOGNISER_STEP
