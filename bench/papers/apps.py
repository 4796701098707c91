"""Apps of the papers; models are named as the papers do unless others are given."""

from interlace.sim.pipeline import Pipeline, PipelineStage, Split, even

#: gpulet section 5.1 and Figure 11: six digits and a picture of a game, all at once; twice the
#: longest model's latency.
GAME_SLO_MS = 108.0
#: gpulet section 5.1 and Figure 11: objects are found, then recognised.
TRAFFIC_SLO_MS = 202.0
#: Primitives paper, section V-F: 30 pictures a second.
RECOG_SLO_MS = 30.0


def game(le: str = "le", res: str = "res", slo_ms: float = GAME_SLO_MS) -> Pipeline:
    """Six LeNets and a ResNet-50 side by side."""
    return Pipeline((PipelineStage(le, le, fan=6.0), PipelineStage(res, res)), slo_ms)


def traffic(
    ssd: str = "ssd",
    goo: str = "goo",
    vgg: str = "vgg",
    slo_ms: float = TRAFFIC_SLO_MS,
    split: Split = even,
) -> Pipeline:
    """SSD, then GoogLeNet and VGG, one request to each: the figure shows no other number."""
    stages = (
        PipelineStage(ssd, ssd),
        PipelineStage(goo, goo, (ssd,)),
        PipelineStage(vgg, vgg, (ssd,)),
    )
    return Pipeline(stages, slo_ms, split)


def recog(
    mobilenet: str = "mobilenet",
    face: str = "vgg-face",
    car: str = "resnet-car",
    slo_ms: float = RECOG_SLO_MS,
    people: float = 1.0,
    vehicles: float = 1.0,
    split: Split = even,
) -> Pipeline:
    """DNN-Recog (primitives paper, Figure 10): MobileNet, then VGG-Face and ResNet-Car.

    ``people`` and ``vehicles`` are how many a picture holds on average; the paper says neither.
    """
    stages = (
        PipelineStage(mobilenet, mobilenet),
        PipelineStage(face, face, (mobilenet,), people),
        PipelineStage(car, car, (mobilenet,), vehicles),
    )
    return Pipeline(stages, slo_ms, split)
