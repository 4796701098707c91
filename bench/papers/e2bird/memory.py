"""Table 4 and Figure 17: workers of an engine, and the memory that they take.

The networks are lists of tensors: what each operation makes and reads.

ResNet (He et al., CVPR 2016, Table 1) and VGG (Simonyan and Zisserman, ICLR 2015, Table 1) for
pictures of 224 x 224 x 3. Normalisation, activation and addition are operations of their own, as in
a graph that nobody has fused. Sizes are in floats for one picture.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.harness import Report, Row, each
from bench.papers.e2bird import titan
from interlace.perf.latency import surface
from interlace.perf.worker_sizes import Guideline, naive, search


def rows(configuration: Sequence[int]) -> int:
    """TotalBS of equation 6: rows in flight when all workers run."""
    return sum(count << power for power, count in enumerate(configuration))


def hidden_part(transfer_ms: float, compute_ms: float) -> float:
    """Equation 1: the part of the time that a pool on the device saves at most, t_T / (t_T + t_C).

    Raises:
        ValueError: a time is negative, or both are 0.
    """
    if transfer_ms < 0 or compute_ms < 0 or transfer_ms + compute_ms <= 0:
        raise ValueError(
            f"times of {transfer_ms} and {compute_ms} ms; expected 0 or more, and not both 0"
        )
    return transfer_ms / (transfer_ms + compute_ms)


def throughput_gain(transfer_ms: float, compute_ms: float) -> float:
    """Throughput with copies hidden behind work, over that of one after the other, at most.

    Computing bounds it at (t_T + t_C) / t_C = 1 / (1 - equation 1), and copying, which goes on all
    the time then, at (t_T + t_C) / t_T.
    """
    part = hidden_part(transfer_ms, compute_ms)
    return 1.0 / max(part, 1.0 - part)


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


def table4() -> Report:
    """Table 4: the configurations that E-Ebird's offline phase finds for Res152, and its engine.

    The search of `interlace.perf.worker_sizes` over all configurations, on the simulated GPU's law
    of streams. The law was fitted with this table in view (`titan`): that five constants are
    enough for four searches is what is shown. The printed engine has one worker of 4, and the
    printed row of 16 wants two: the engine found here has them. Res50 and Res101, whose tables are
    not printed, are searched too.
    """
    found = {model: guideline(model) for model in titan.MODELS}
    rows = [
        Row(f"res152, {total} rows: {list(one)} as printed (1 = so)", 1.0, float(one == known))
        for (total, one), known in zip(
            found["res152"].best.items(), titan.TABLE_4.values(), strict=True
        )
    ]
    engine = found["res152"].engine
    rows.append(
        Row(f"res152, engine: workers, {list(engine)}", sum(titan.TABLE_4_ENGINE), sum(engine))
    )
    for model in ("res50", "res101"):
        for total, one in found[model].best.items():
            rows.append(Row(f"{model}, {total} rows: workers, {list(one)}", None, sum(one)))

    return Report(rows)


def guideline(model: str) -> Guideline:
    """What the offline phase finds."""
    return search(titan.STREAMS.measure(surface(titan.profile(model), "median_ms")))


SYSTEMS: Final = ("TF-Serving", "NM-Ebird", "E2bird")
_MB: Final = 4 / 1e6


def figure17() -> Report:
    """Figure 17: memory of TF-Serving, of E2bird without its two savings (NM-Ebird), and of E2bird.

    Counted from the networks' tensors: one worker of 32 with a tensor for every operation (TF-
    Serving); N-Ebird's six workers with weights and tensors of their own (NM-Ebird); the engine of
    Table 4's search with one copy of the weights, and memory used again once a tensor's last reader
    has run (E2bird, sections 6.2.1 and 6.2.2). The bars are only drawn; printed are the means.

    Left open, and not counted: the convolutions' workspace and what CUDA and the frameworks take
    for themselves. They are in all three bars and do not shrink, so the savings counted here are
    larger than the measured ones. Five of the paper's six networks: Inception-v4 is left out.
    """
    found = {name: memory_mb(name) for name in NETWORKS}

    def mean_pct(one: str, other: str) -> float:
        return 100 * sum(m[one] / m[other] - 1 for m in found.values()) / len(found)

    tf, nm, e2bird = SYSTEMS
    rows = [
        Row("NM-Ebird over TF-Serving, mean", titan.NM_OVER_TF_PCT, mean_pct(nm, tf), " %"),
        Row("E2bird under NM-Ebird, mean", titan.E_UNDER_NM_PCT, -mean_pct(e2bird, nm), " %"),
        Row("E2bird under TF-Serving, mean", titan.E_UNDER_TF_PCT, -mean_pct(e2bird, tf), " %"),
    ]
    for name, memory in found.items():
        rows += each(f"{name}, {{}}", memory, " MB")
    return Report(rows)


def memory_mb(name: str) -> dict[str, float]:
    """Megabytes of each system."""
    network = graph(name)
    weights, every, again = network.weights, network.everything(), network.reused()
    workers = naive(titan.MAX_BATCH)
    in_engine = rows(guideline("res152").engine)
    floats = {
        "TF-Serving": weights + titan.MAX_BATCH * every,
        "NM-Ebird": len(workers) * weights + sum(workers) * every,
        "E2bird": weights + in_engine * again,
    }
    return {system: count * _MB for system, count in floats.items()}
