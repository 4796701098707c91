"""Layers that checks time: products, a convolution, attention, something compiled."""

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


def linear(bench: Bench, device: str) -> Body:
    """A layer of BERT-base with its bias, batch 16 of 128 tokens, half precision."""
    import torch

    tokens, wide = bench.size((16 * 128, 768), (4, 8))
    dtype = bench.size(torch.float16, torch.float32)
    layer = torch.nn.Linear(wide, 4 * wide, device=device, dtype=dtype).requires_grad_(False)
    rows = torch.randn(tokens, wide, device=device, dtype=dtype)
    return lambda: layer(rows)


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


def attention(bench: Bench, device: str) -> Body:
    """Attention as in BERT-base, batch 16, 512 tokens."""
    import torch

    batch, heads, tokens = bench.size((16, 12, 512), (1, 2, 4))
    dtype = bench.size(torch.float16, torch.float32)
    parts = [torch.randn(batch, heads, tokens, 64, device=device, dtype=dtype) for _ in range(3)]
    return lambda: torch.nn.functional.scaled_dot_product_attention(*parts)


def compiled(bench: Bench, device: str) -> Body:
    """A chain of elementwise operations as one kernel of the compiler's."""
    import torch

    rows = torch.randn(bench.size(1 << 24, 64), device=device)

    def chain(values: Any) -> Any:
        return (values * 2.0 + 1.0).sin() * values

    if bench.dry:  # a compiler would be asked for machine code of this processor
        return lambda: chain(rows)
    made = torch.compile(chain, mode="max-autotune-no-cudagraphs")
    return lambda: made(rows)
