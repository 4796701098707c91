"""Compiles the hot modules with mypyc where mypy and a C compiler are there; else Python serves.

`python setup.py build_ext --inplace` compiles them in a checkout.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError

COMPILED = runpy.run_path("interlace/compiled.py")
BUILDS = {"build", "build_ext", "bdist_wheel", "editable_wheel", "install"}


def extensions() -> list[Extension]:
    """C extensions of the hot modules, made from their types; none where that cannot be."""
    if not BUILDS & set(sys.argv):
        return []
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return _none(f"there is no C compiler ({compiler})")
    try:
        from mypyc.build import mypycify
    except ImportError as error:
        return _none(f"{error}; pip install mypy")
    options = ["--config-file=pyproject.toml", "--ignore-missing-imports"]
    hot = [f"interlace/{name}" for name in COMPILED["HOT"]]
    try:
        return mypycify(
            [*options, *hot],
            opt_level="2",
            debug_level="0",
            multi_file=True,
            target_dir="build/mypyc",
            group_name="interlace.compiled",
        )
    except SystemExit:  # mypyc has printed what it refuses
        return _none("mypyc refused a module (above)")


def _none(why: str) -> list[Extension]:
    print(f"interlace stays pure Python, several times slower: {why}", file=sys.stderr)
    return []


class Build(build_ext):
    """Compiles on all cores, and notes which sources are in what it made."""

    def run(self) -> None:
        self.parallel = self.parallel or len(os.sched_getaffinity(0))
        try:
            super().run()
        except BaseError as error:
            self.extensions = _none(f"the C compiler failed: {error}")
        manifest: Path = COMPILED["MANIFEST"]
        manifest.unlink(missing_ok=True)
        if self.inplace and self.extensions:
            manifest.write_text(json.dumps(COMPILED["sources"]()))


setup(ext_modules=extensions(), cmdclass={"build_ext": Build})
