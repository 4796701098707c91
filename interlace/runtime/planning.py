"""One plan made in a process of its own, which ends with it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Final

from interlace.core.hardware import Fleet
from interlace.core.messages import Planned, Solve
from interlace.core.plan import Plan
from interlace.policy.base import Planner

LIMIT_S: Final = 60.0
_CHILD: Final = "import os; os.nice(10); from interlace.runtime.planning import main; main()"


def solve(planner: Planner, fleet: Fleet, question: Solve) -> Planned:
    """The planner's answer to a question; its exception, in words, if it raised."""
    try:
        plan = planner(question.demand, fleet, question.profiles, question.current)
    except Exception as error:  # a planner is a plug-in: what it raises must not stop serving
        return Planned(question.ticket, Plan(), f"the planner raised {error!r}")
    return Planned(question.ticket, plan)


def solve_apart(planner: Planner, fleet: Fleet, question: Solve) -> Planned:
    """As ``solve``, in a process of its own; it blocks, so it is called from a thread.

    A search of seconds would otherwise hold the interpreter lock against every request. The
    process lives as long as the search: plans are rare, and one that waits idle holds memory.
    """
    sent = pickle.dumps((planner, fleet, question))
    argv = [sys.executable, "-c", _CHILD]
    try:
        done = subprocess.run(argv, input=sent, capture_output=True, timeout=LIMIT_S, check=True)
    except subprocess.TimeoutExpired:
        return Planned(question.ticket, Plan(), f"no plan within {LIMIT_S:g} s")
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return Planned(question.ticket, Plan(), f"the planning process broke: {''.join(last)}")
    answer = pickle.loads(done.stdout)
    assert isinstance(answer, Planned)
    return answer


def main() -> None:
    """The planning process: a pickled question on standard input, the answer on its output."""
    planner, fleet, question = pickle.load(sys.stdin.buffer)
    pickle.dump(solve(planner, fleet, question), sys.stdout.buffer)
