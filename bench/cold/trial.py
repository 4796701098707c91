"""Many models in a tenth of their memory, as a user would try it: each answer is its own model's.

`python -m bench.cold.trial --count 200 --seconds 90`. Requests come at a low rate by Zipf's law,
and meanwhile a worker is killed while models load, twice, a model is replaced while it is cold, one
is broken, one has its laid-out weights cut short, one is new, one gets another SLO, one leaves
(each has the server plan again) and one is loaded as it is. One model is larger than all memory.
With ``--host-memory`` the page cache is looked at five times a second: how much it has of the
laid-out weights. With ``--fill`` the file system of ``--folder``, which should have one of its own,
is full while one is replaced and a worker is killed. In the end the log is replayed.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Annotated, Any

import numpy as np

from bench.cold.playing import zipf_parts
from bench.cold.variants import WIDTH, variants, write_variant
from bench.harness import Report, Row, main
from interlace.formats.page_cache import cached_part
from interlace.repository.digest import Digests

_X = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [0.5] * WIDTH}
_IDS = [1, 2, 3, 4, 5, 6, 7, 8]
_STATES = ("resident", "loading", "cold")
_NEW = 100_000  #: added to the number of a model that was replaced


def trial(
    *,
    count: Annotated[int, "models"] = 200,
    seconds: Annotated[float, "of traffic"] = 90.0,
    rate_rps: Annotated[float, "of all models"] = 8.0,
    hidden: Annotated[int, "units of a layer"] = 64,
    folder: Annotated[str, "for models, made anew, and profiles; else a temporary one"] = "",
    fill: Annotated[bool, "the file system of the folder, for a while"] = False,
    host_memory: Annotated[str, "of weights that the page cache may keep, such as 10MB"] = "",
) -> Report:
    """Requests, what became of them, and what the server said of each step."""
    with TemporaryDirectory() as own:
        made = _Trial(Path(folder or own), count, hidden, host_memory)
        return made.run(seconds, rate_rps, fill)


class _Trial:
    def __init__(self, folder: Path, count: int, hidden: int, host_memory: str = "") -> None:
        self.models, self._folder, self._hidden = folder / "models", folder, hidden
        self._host_memory = host_memory
        for made in (self.models, folder / "large", folder / f"v{count:04d}"):
            shutil.rmtree(made, ignore_errors=True)  # an earlier trial left some of them changed
        variants(self.models, count + 1, hidden, slo_ms=2000.0)
        self._late = f"v{count:04d}"  # comes while traffic runs
        shutil.move(self.models / self._late, folder / self._late)
        variants(folder / "large", 1, 16 * hidden)
        shutil.move(folder / "large" / "v0000", self.models / "large")
        self.names = [f"v{number:04d}" for number in range(count)]
        sizes = [
            file.stat().st_size
            for name in self.names
            for file in (self.models / name / "1").glob("*.safetensors")
        ]
        self._memory = f"{max(2, sum(sizes) // 10_000_000)}MB"
        self._right: dict[str, set[float]] = {}
        self._said: list[str] = []
        self.port, self._log, self._start_s = 0, folder / "server.log", 0.0

    def run(self, seconds: float, rate_rps: float, fill: bool) -> Report:
        with self._served() as server:
            random = np.random.default_rng(0)
            parts = zipf_parts(len(self.names), 0.9)
            order = random.permutation(len(self.names))
            at_s = np.cumsum(random.exponential(1 / rate_rps, int(seconds * rate_rps)))
            asked = [self.names[order[k]] for k in random.choice(len(parts), len(at_s), p=parts)]
            began_s = time.monotonic()
            with ThreadPoolExecutor(64) as pool, self._page_cache() as cached_mb:
                steps = pool.submit(self._steps, server, list(order), seconds, fill)
                answers = []
                for due_s, name in zip(at_s, asked, strict=True):
                    time.sleep(max(0.0, began_s + due_s - time.monotonic()))
                    answers.append((name, pool.submit(self._ask, name)))
                found = [(name, answer.result()) for name, answer in answers]
                steps.result()
            server.send_signal(signal.SIGTERM)
            code = server.wait(60.0)
        self._said.append(f"replayed: {self._told('replay', self._folder / 'events.log')}")
        large = re.search(r"large is not served: (.*)", self._log.read_text())
        self._said.append(f"large: {large[1] if large else 'no word'}")
        told = Counter(what for _, what in found)
        wrong = told.pop("another's", 0)
        rows = [
            Row("seconds until it is ready", None, self._start_s),
            Row("requests", None, len(found)),
            Row("answered, each by its own model", None, told.pop("right", 0)),
            Row("answered by another's or not at all", 0, wrong + told.pop("nothing", 0)),
            *(Row(f"told: {what}", None, number) for what, number in told.most_common()),
            Row("exit code", 0, code),
        ]
        if cached_mb:
            rows.append(Row("MB in the page cache, median", None, float(np.median(cached_mb))))
            rows.append(Row("MB in the page cache, at most", None, max(cached_mb)))
        return Report(rows, figures={"said": self._said, "cached_mb": cached_mb})

    @contextmanager
    def _served(self) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "interlace", "serve", str(self.models)]
        command += ["--memory", self._memory, "--profiles", str(self._folder / "profiles")]
        command += ["--host-memory", self._host_memory] if self._host_memory else []
        command += [*["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--log"]]
        began_s = time.monotonic()
        with self._log.open("wb") as out:
            server = subprocess.Popen(
                [*command, str(self._folder / "events.log")], stdout=out, stderr=out
            )
        try:
            while not (ready := re.search(r"ready: HTTP on (\d+)", self._log.read_text())):
                if server.poll() is not None:
                    raise SystemExit(f"the server ended: {self._log.read_text()[-2000:]}")
                time.sleep(0.2)
            self.port, self._start_s = int(ready[1]), time.monotonic() - began_s
            yield server
        finally:
            server.kill()
            server.wait()

    @contextmanager
    def _page_cache(self) -> Iterator[list[float]]:
        """Looks at the page cache meanwhile, if it is bounded: MB of the laid-out weights."""
        cached_mb: list[float] = []
        ended = Event()

        def look() -> None:
            while not ended.wait(0.2):
                cached_mb.append(sum(map(_cached_mb, self._laid_out())))

        with ThreadPoolExecutor(1) as pool:
            looking = pool.submit(look) if self._host_memory else None
            try:
                yield cached_mb
            finally:
                ended.set()
                if looking is not None:
                    looking.result()

    def _laid_out(self) -> Iterator[Path]:
        """Files of weights as the server has them."""
        return (file for file in (self._folder / "weights").glob("*-*") if file.is_file())

    def _steps(
        self, server: subprocess.Popen[bytes], order: list[int], seconds: float, fill: bool
    ) -> None:
        """What happens meanwhile, evenly over the time; cold models are those asked least."""
        cold = [f"v{number:04d}" for number in reversed(order) if number % 2 == 0]
        replaced, broken, leaving, again, slower = cold[:5]
        short = cold[18]
        steps: list[tuple[str, Callable[[], object]]] = [
            ("a worker is killed while these load", lambda: self._kill(server, cold[5:9])),
            ("replaced while cold", lambda: self._replace(replaced)),
            ("broken", lambda: self._break(broken)),
            ("new", self._new),
            ("laid out and cut short", lambda: self._cut(short)),
            ("left", lambda: self._tell(f"{leaving}/unload")),
            ("a worker is killed again", lambda: self._kill(server, cold[10:14])),
            ("seen meanwhile", self._top),
            ("another SLO", lambda: self._slower(slower)),
            ("loaded as it is", lambda: self._tell(f"{again}/load")),
        ]
        if fill:
            full = ("the disk is full", lambda: self._full(server, cold[9], cold[14:18]))
            steps.insert(3, full)
        began_s = time.monotonic()
        for place, (what, do) in enumerate(steps):
            due_s = began_s + (place + 1) * seconds / (len(steps) + 2)
            time.sleep(max(0.0, due_s - time.monotonic()))
            at_s = time.monotonic()
            came = do()
            self._said.append(f"{what}, in {time.monotonic() - at_s:.1f} s: {came}")

    def _kill(self, server: subprocess.Popen[bytes], names: list[str]) -> object:
        pairs = [
            (int(stat.parent.name), int(stat.read_text().rpartition(")")[2].split()[1]))
            for stat in Path("/proc").glob("[0-9]*/stat")
        ]
        below = {pid for pid, parent in pairs if parent == server.pid}
        workers = [pid for pid, parent in pairs if parent in below]
        with ThreadPoolExecutor(len(names)) as pool:
            told = [pool.submit(self._ask, name) for name in names]
            time.sleep(0.003)
            os.kill(workers[-1], signal.SIGKILL)
            return [one.result() for one in told]

    def _replace(self, name: str) -> object:
        number = int(name[1:])
        self._right[name] = {float(number), float(number + _NEW)}
        self._write(name, number + _NEW)
        return self._loaded(name, number + _NEW)

    def _write(self, name: str, number: int) -> None:
        version = self.models / name / "1"
        for file in version.iterdir():
            file.unlink()
        write_variant(version, number, self._hidden, {})

    def _loaded(self, name: str, number: int) -> object:
        """Tell the server to load ``name``; if it has, no other answer than ``number`` is right."""
        told = self._tell(f"{name}/load")
        if told == (200, ""):
            self._right[name] = {float(number)}
        return told, self._ask(name)

    def _break(self, name: str) -> object:
        (file,) = (self.models / name / "1").glob("*.safetensors")
        file.write_bytes(file.read_bytes()[:-1000])
        return self._tell(f"{name}/load"), self._ask(name)

    def _cut(self, name: str) -> object:
        """What the server has laid out of a model's weights, which may be mapped."""
        digest = Digests().of(self.models / name / "1")
        (file,) = (self._folder / "weights").glob(f"{digest}-*")
        os.truncate(file, file.stat().st_size // 3)
        asked = self._ask(name), self._ask(name)
        return asked, [self._tell(f"{name}/{to}") for to in ("unload", "load")], self._ask(name)

    def _full(self, server: subprocess.Popen[bytes], name: str, others: list[str]) -> object:
        """The new weights are there, but no room is left to lay them out; a worker is killed."""
        number, rest = int(name[1:]), self._folder / "rest"
        self._right[name] = {float(number), float(number + _NEW)}
        self._write(name, number + _NEW)
        with rest.open("wb") as file, suppress(OSError):
            while file.write(bytes(1 << 16)):
                file.flush()
        try:
            full = self._tell(f"{name}/load"), self._ask(name), self._kill(server, others)
        finally:
            rest.unlink()
        return full, self._loaded(name, number + _NEW)

    def _new(self) -> object:
        shutil.move(self._folder / self._late, self.models / self._late)
        return self._tell(f"{self._late}/load"), self._ask(self._late)

    def _slower(self, name: str) -> object:
        (self.models / name / "interlace.toml").write_text("slo_ms = 4000\n")
        return self._tell(f"{name}/load"), self._ask(name)

    def _top(self) -> object:
        table = self._told("top", f"127.0.0.1:{self.port}", "--once").splitlines()
        states = Counter(word for line in table for word in line.split() if word in _STATES)
        return dict(states), table[:3]

    def _told(self, *command: object) -> str:
        words = [sys.executable, "-m", "interlace", *map(str, command)]
        told = subprocess.run(words, capture_output=True, text=True, check=False)
        return told.stdout if told.returncode == 0 else f"{told.stdout}{told.stderr}"

    def _tell(self, path: str) -> tuple[int, str]:
        status, body = self._call(f"/v2/repository/models/{path}", {})
        return status, body if status != 200 else ""

    def _ask(self, name: str) -> str:
        """What came: "right", "another's", "nothing", or the words of an error."""
        number = int(name[1:])
        inputs: list[dict[str, Any]] = [_X]
        if number % 2:
            ids = {"shape": [1, len(_IDS)], "datatype": "INT64"}
            inputs = [
                {"name": "input_ids", **ids, "data": _IDS},
                {"name": "attention_mask", **ids, "data": [1] * len(_IDS)},
            ]
        try:
            status, body = self._call(f"/v2/models/{name}/infer", {"inputs": inputs})
        except OSError:
            return "nothing"
        if status != 200:
            return f"{status} {re.sub(r'[0-9.]+|v[0-9]{4}', '#', body)[:90]}"
        found = float(json.loads(body)["outputs"][0]["data"][0])
        if number % 2:  # a BERT's first answer is what its others are held against
            known = self._right.setdefault(name, {found})
            return "right" if min(abs(found - one) for one in known) < 1e-4 else "another's"
        return "right" if found in self._right.get(name, {float(number)}) else "another's"

    def _call(self, path: str, body: object) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60.0)
        try:
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from None
        finally:
            connection.close()


def _cached_mb(file: Path) -> float:
    with suppress(OSError, ValueError):  # it is replaced
        return cached_part(file) * file.stat().st_size / 1e6
    return 0.0


if __name__ == "__main__":
    main(trial)
