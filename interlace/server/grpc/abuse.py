"""What a connection may ask for at no cost to itself: what well-behaved peers never use up."""

from __future__ import annotations

from typing import Final

from interlace.server.grpc.http2_frames import ENHANCE_YOUR_CALM, PeerError
from interlace.server.grpc.limits import GrpcLimits, TokenBucket

#: Window updates that a client may send for each call, and for each DATA frame that it gets (as in
#: nghttp2 and Envoy): one for the stream, one for the connection, and some that are eager.
_UPDATES_EACH: Final = 10


class AbuseBudget:
    """The budget of one connection; a peer that has used it up gets ENHANCE_YOUR_CALM.

    ``burst_share`` of its bursts is there at first. What raises ``PeerError`` is ENHANCE_YOUR_CALM.
    """

    def __init__(self, limits: GrpcLimits, burst_share: float = 1.0) -> None:
        self._control = TokenBucket(10.0 * limits.control_per_s, limits.control_per_s, burst_share)
        self._resets = TokenBucket(2.0 * limits.resets_per_s, limits.resets_per_s, burst_share)
        self._updates_left = 0  # window updates that cost nothing
        self._data_frames = 0  # sent so far, as of the last update

    def charge(self, what: str = "frames that carry no call") -> None:
        """A frame that cost the peer nothing and us something.

        Raises:
            PeerError: too many of them.
        """
        if not self._control.take():
            raise PeerError(ENHANCE_YOUR_CALM, f"too many {what}")

    def charge_reset(self, what: str) -> None:
        """A stream that was opened for nothing.

        Raises:
            PeerError: too many of them.
        """
        if not self._resets.take():
            raise PeerError(ENHANCE_YOUR_CALM, f"too many streams {what}")

    def charge_update(self, data_frames: int) -> None:
        """A window update, after so many DATA frames were sent; those that these explain are free.

        Raises:
            PeerError: too many others.
        """
        self._updates_left += _UPDATES_EACH * (data_frames - self._data_frames) - 1
        self._data_frames = data_frames
        if self._updates_left < 0:
            self._updates_left = 0
            self.charge()

    def opened(self) -> None:
        """A call, for which windows may be updated before anything is sent."""
        self._updates_left += _UPDATES_EACH
