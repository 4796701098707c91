"""Run each part of gpu-check; a part fails if it did not end or a law does not hold."""

import pytest

from bench.gpu.checks.course import Course
from bench.gpu.parts import Part


def test_part(part: Part, course: Course) -> None:
    broken = [str(row) for row in course.run(part) if row.broken]
    if broken:
        pytest.fail("\n".join(broken), pytrace=False)
