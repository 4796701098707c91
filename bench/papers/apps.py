"""Apps of the papers; models are named as the papers do."""

from interlace.apps.graph import Stage, staged
from interlace.sim.apps import SimulatedApp


def traffic(slo_ms: float) -> SimulatedApp:
    """gpulet, Figure 11: SSD, then GoogLeNet and VGG, one row to each, as no number is shown."""
    stages = {"ssd": Stage("ssd"), "goo": Stage("goo", ("ssd",)), "vgg": Stage("vgg", ("ssd",))}
    return SimulatedApp(staged("traffic", stages), slo_ms)


def recog(slo_ms: float, people: float = 1.0, vehicles: float = 1.0) -> SimulatedApp:
    """DNN-Recog (primitives paper, Figure 10): MobileNet, then VGG-Face and ResNet-Car.

    ``people`` and ``vehicles`` are how many a picture holds on average; the paper says neither.
    """
    stages = {
        "mobilenet": Stage("mobilenet"),
        "face": Stage("vgg-face", ("mobilenet",), people),
        "car": Stage("resnet-car", ("mobilenet",), vehicles),
    }
    return SimulatedApp(staged("recog", stages), slo_ms)
