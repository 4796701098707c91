"""Child processes: what they are given, what they leave, and when they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from interlace.shm import children
from tests.server.fakes import wait_until

_HERE = __name__


def tell(word: str, *limits: float) -> None:
    """In the child: what it was told and found, and a last word on its other stream."""
    print(json.dumps([word, limits, sys.stdin.read(), sys.path, os.environ["SEEN"]]))
    print("not this\nlast words", file=sys.stderr)
    sys.exit(3)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def tell_weights() -> None:
    """In the child: its nice value and session, and the scheduling group's line if there is one."""
    group = Path("/proc/self/autogroup")
    weights = os.getpriority(os.PRIO_PROCESS, 0), os.getsid(0)
    print(json.dumps([*weights, group.read_text() if group.exists() else ""]))


def keep_one() -> None:
    """In the child: have one more, and say which."""
    made = children.start("interlace.shm.children:become", "-c", "import time; time.sleep(60)")
    print(made.pid, flush=True)
    time.sleep(60)


def test_a_child_gets_its_arguments_and_packages_and_says_how_it_ended() -> None:
    made = children.start(f"{_HERE}:tell", "a", 1.5, environment={"SEEN": "x"}, pipes=True)
    status, written, last_words = children.finish(made, 30.0, b"sent")
    assert (status, last_words) == (3, "last words")
    assert json.loads(written) == ["a", [1.5], "sent", sys.path, "x"]


def test_a_child_that_yields_is_weighed_less_within_and_between_sessions() -> None:
    made = children.start(f"{_HERE}:tell_weights", pipes=True, yields=True)
    nice, session, group = json.loads(children.finish(made, 30.0).written)
    assert nice == max(children.NICE, os.getpriority(os.PRIO_PROCESS, 0))
    assert session == made.pid
    enabled = Path("/proc/sys/kernel/sched_autogroup_enabled")
    if group and enabled.read_text().strip() == "1":
        assert group.strip().endswith(f"nice {children.NICE}")


def test_a_child_that_takes_too_long_is_killed() -> None:
    made = children.start(f"{_HERE}:sleep", 60, pipes=True)
    with pytest.raises(subprocess.TimeoutExpired):
        children.finish(made, 0.1)
    assert made.returncode == -9
    other = children.start(f"{_HERE}:sleep", 60)
    children.end(other, 0.1)
    assert other.returncode == -9


def test_a_child_ends_when_the_process_that_started_it_is_killed() -> None:
    parent = children.start(f"{_HERE}:keep_one", pipes=True)
    assert parent.stdout is not None
    bound = psutil.Process(int(parent.stdout.readline()))
    wait_until(lambda: bound.cmdline()[-1:] == ["import time; time.sleep(60)"])
    with parent:
        parent.kill()
    bound.wait(20)


def test_a_child_of_a_process_that_is_gone_does_not_begin() -> None:
    code = "from interlace.shm.children import main; main('builtins:print', 1, ['began'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == "" and "has gone" in done.stderr
