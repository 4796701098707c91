"""What E2bird's analysis promises: copies that can be hidden, and workers that share by rows."""

from collections.abc import Sequence


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
