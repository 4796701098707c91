"""What a web page, or a name that points to this machine, could make a browser do."""

from __future__ import annotations

from bench.attack.attack import VICTIM, Ground, Result
from bench.attack.calls import HttpCaller, body
from bench.attack.stand import Stand


def browser(ground: Ground, stand: Stand) -> Result:
    """Cross-site POSTs and foreign Hosts are refused with 403; the same without are served."""
    caller = HttpCaller(stand.http_port)
    unload = f"/v2/repository/models/{VICTIM.model}/unload"
    infer = f"/v2/models/{VICTIM.model}/infer"
    row = body([1.0, 2.0, 3.0, 4.0])
    foreign = {"Origin": "https://evil.example", "Sec_Fetch_Site": "cross-site"}
    asked = {
        "unload, cross-site": (unload, foreign, 403),
        "unload, foreign Origin": (unload, {"Origin": "https://evil.example"}, 403),
        "infer, cross-site": (infer, foreign, 403),
        "index, foreign Host": ("/v2/repository/index", {"Host": "evil.example"}, 403),
        "infer": (infer, {}, 200),
        "infer, localhost": (infer, {"Host": f"localhost:{stand.http_port}"}, 200),
    }
    result = Result(len(asked))
    for name, (path, headers, want) in asked.items():
        got = caller.post(path, row, **headers)[0]
        result.figures[name] = got
        result.broken[f"{name}: {got}, not {want}"] += got != want
    caller.post(f"/v2/repository/models/{VICTIM.model}/load", b"{}")
    return result
