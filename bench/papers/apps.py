"""Apps of the papers; models are named as the papers do unless others are given."""

from interlace.apps.graph import Stage, staged
from interlace.sim.apps import SimulatedApp

#: gpulet section 5.1 and Figure 11: six digits and a picture of a game, all at once; twice the
#: longest model's latency.
GAME_SLO_MS = 108.0
#: gpulet section 5.1 and Figure 11: objects are found, then recognised.
TRAFFIC_SLO_MS = 202.0
#: Primitives paper, section V-F: 30 pictures a second.
RECOG_SLO_MS = 30.0


def game(le: str = "le", res: str = "res", slo_ms: float = GAME_SLO_MS) -> SimulatedApp:
    """Six LeNets and a ResNet-50 side by side."""
    return SimulatedApp(staged("game", {"le": Stage(le, rows=6.0), "res": Stage(res)}), slo_ms)


def traffic(
    ssd: str = "ssd", goo: str = "goo", vgg: str = "vgg", slo_ms: float = TRAFFIC_SLO_MS
) -> SimulatedApp:
    """SSD, then GoogLeNet and VGG, one row to each: the figure shows no other number."""
    stages = {"ssd": Stage(ssd), "goo": Stage(goo, ("ssd",)), "vgg": Stage(vgg, ("ssd",))}
    return SimulatedApp(staged("traffic", stages), slo_ms)


def recog(
    mobilenet: str = "mobilenet",
    face: str = "vgg-face",
    car: str = "resnet-car",
    slo_ms: float = RECOG_SLO_MS,
    people: float = 1.0,
    vehicles: float = 1.0,
) -> SimulatedApp:
    """DNN-Recog (primitives paper, Figure 10): MobileNet, then VGG-Face and ResNet-Car.

    ``people`` and ``vehicles`` are how many a picture holds on average; the paper says neither.
    """
    stages = {
        "mobilenet": Stage(mobilenet),
        "face": Stage(face, ("mobilenet",), people),
        "car": Stage(car, ("mobilenet",), vehicles),
    }
    return SimulatedApp(staged("recog", stages), slo_ms)
