"""The networks of E2bird's evaluation as lists of tensors: what each operation makes and reads.

ResNet (He et al., CVPR 2016, Table 1) and VGG (Simonyan and Zisserman, ICLR 2015, Table 1) for
pictures of 224 x 224 x 3. Normalisation, activation and addition are operations of their own, as in
a graph that nobody has fused. Sizes are in floats for one picture.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_RESNETS: Final = {"res50": (3, 4, 6, 3), "res101": (3, 4, 23, 3), "res152": (3, 8, 36, 3)}
_VGGS: Final = {"vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}
NETWORKS: Final = (*_RESNETS, *_VGGS)


@dataclass(slots=True)
class Graph:
    """Operations in order: each makes one tensor of a size from tensors made before."""

    sizes: list[int] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    weights: int = 0

    def add(self, size: int, *inputs: int, weights: int = 0) -> int:
        """One operation; the number of its output."""
        self.sizes.append(size)
        self.reads.append(inputs)
        self.weights += weights
        return len(self.sizes) - 1

    def everything(self) -> int:
        """Floats if every tensor has memory of its own."""
        return sum(self.sizes)

    def reused(self) -> int:
        """Floats if memory is used again once the last reader has run (section 6.2.1).

        The rule of the released memory reducer: the smallest free block that is large enough, or
        else a new one.
        """
        last = {one: step for step, inputs in enumerate(self.reads) for one in inputs}
        blocks: list[int] = []
        free: list[int] = []
        block_of: dict[int, int] = {}
        for step, size in enumerate(self.sizes):
            enough = [block for block in free if blocks[block] >= size]
            if enough:
                block = min(enough, key=lambda one: blocks[one])
                free.remove(block)
            else:
                blocks.append(size)
                block = len(blocks) - 1
            block_of[step] = block
            free += [block_of[one] for one in set(self.reads[step]) if last[one] == step]
        return sum(blocks)


def graph(name: str) -> Graph:
    """A network by name."""
    return _resnet(_RESNETS[name]) if name in _RESNETS else _vgg(_VGGS[name])


def _convolved(made: Graph, source: int, channels: tuple[int, int], side: int, kernel: int) -> int:
    """Convolution and normalisation."""
    size = channels[1] * side * side
    weights = channels[0] * channels[1] * kernel * kernel
    out = made.add(size, source, weights=weights)
    return made.add(size, out, weights=4 * channels[1])


def _resnet(blocks: Sequence[int]) -> Graph:
    made = Graph()
    picture = made.add(3 * 224 * 224)
    out = _convolved(made, picture, (3, 64), 112, 7)
    out = made.add(64 * 112 * 112, out)
    out = made.add(64 * 56 * 56, out)
    wide, side = 64, 56
    for stage, count in enumerate(blocks):
        narrow = 64 << stage
        for place in range(count):
            if stage and not place:
                side //= 2
            out = _bottleneck(made, out, (wide, narrow), side, not place)
            wide = 4 * narrow
    pooled = made.add(wide, out)
    made.add(1000, pooled, weights=wide * 1000 + 1000)
    return made


def _bottleneck(
    made: Graph, source: int, channels: tuple[int, int], side: int, projected: bool
) -> int:
    wide, narrow = channels
    size = side * side
    out = made.add(narrow * size, _convolved(made, source, (wide, narrow), side, 1))
    out = made.add(narrow * size, _convolved(made, out, (narrow, narrow), side, 3))
    out = _convolved(made, out, (narrow, 4 * narrow), side, 1)
    short = _convolved(made, source, (wide, 4 * narrow), side, 1) if projected else source
    out = made.add(4 * narrow * size, out, short)
    return made.add(4 * narrow * size, out)


def _vgg(layers: Sequence[int]) -> Graph:
    made = Graph()
    out, deep, side = made.add(3 * 224 * 224), 3, 224
    for stage, count in enumerate(layers):
        wide = min(512, 64 << stage)
        for _ in range(count):
            size = wide * side * side
            out = made.add(size, out, weights=deep * wide * 9 + wide)
            out = made.add(size, out)
            deep = wide
        side //= 2
        out = made.add(wide * side * side, out)
    inputs = deep * side * side
    for outputs in (4096, 4096, 1000):
        out = made.add(outputs, out, weights=inputs * outputs + outputs)
        if outputs == 4096:
            out = made.add(outputs, out)
        inputs = outputs
    return made
