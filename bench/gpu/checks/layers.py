"""Layers that checks time: a product, a convolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.gpu.bench import Bench

Body = Callable[[], Any]


def gemm(bench: Bench, device: str) -> Body:
    """A square product in half precision."""
    import torch

    side = bench.size(4096, 32)
    dtype = bench.size(torch.float16, torch.float32)
    one, other = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(one)
    return lambda: torch.mm(one, other, out=out)


def convolution(bench: Bench, device: str) -> Body:
    """A 3 x 3 convolution as in ResNet-50's third stage, channels last, half precision."""
    import torch

    batch, channels, side = bench.size((64, 256, 14), (1, 4, 6))
    dtype = bench.size(torch.float16, torch.float32)
    layer = torch.nn.Conv2d(channels, channels, 3, padding=1, device=device, dtype=dtype)
    layer = layer.to(memory_format=torch.channels_last).eval().requires_grad_(False)
    rows = torch.randn(batch, channels, side, side, device=device, dtype=dtype)
    rows = rows.contiguous(memory_format=torch.channels_last)
    return lambda: layer(rows)
