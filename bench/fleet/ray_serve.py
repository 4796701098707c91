"""Ray Serve with one replica that answers at once: `python -m bench.fleet.ray_serve PORT`.

Run by a Python that has `ray[serve]`; it imports nothing of this project.
"""

from __future__ import annotations

import signal
import sys

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

_QUIET = {"log_level": "WARNING", "enable_access_log": False}
#: What a client asks of the model before its requests, and as good an answer as any to those.
_ANSWER = (
    b'{"name": "tagger", "inputs": [{"name": "features", "datatype": "FP32", "shape": [-1, 16]}],'
    b' "outputs": []}'
)


@serve.deployment(ray_actor_options={"num_cpus": 0}, max_ongoing_requests=64, logging_config=_QUIET)
class Constant:
    """Reads a request, and answers what it always does."""

    async def __call__(self, request: Request) -> Response:
        """What every path answers."""
        await request.body()
        return Response(_ANSWER, media_type="application/json")


def main(port: int) -> None:
    """Serve until SIGTERM."""
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(Constant.bind(), route_prefix="/")  # type: ignore[attr-defined]
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
