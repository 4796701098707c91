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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError

COMPILED = runpy.run_path("interlace/compiled.py")
SOURCES = COMPILED["sources"]()  # as they are before mypyc reads them
C_SOURCES = Path("build/mypyc")
POLLING = "interlace/device/cuda/driver/sources/loops.c"
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
    # Not the project's strict settings: a build environment lacks libraries that they look into.
    options = ["--config-file=", "--ignore-missing-imports"]
    hot = [f"interlace/{name}" for name in COMPILED["HOT"]]
    try:
        made = mypycify(
            [*options, *hot],
            opt_level="2",
            debug_level="0",
            multi_file=True,
            target_dir=str(C_SOURCES),
            group_name="interlace.compiled",
        )
    except SystemExit:  # mypyc has printed what it refuses
        return _none("mypyc refused a module (above)")
    for extension in made:
        extension.include_dirs.append(str(C_SOURCES / "interlace"))
    return made


def _none(why: str) -> list[Extension]:
    print(f"interlace stays pure Python, several times slower: {why}", file=sys.stderr)
    return []


class Build(build_ext):
    """Compiles on all cores, only what changed, and notes which sources are in what it made."""

    def build_extensions(self) -> None:
        plain = self.compiler.compile
        headers = [path.stat().st_mtime for path in C_SOURCES.rglob("*.h")]

        def one(source: str, kept: dict[str, Any]) -> list[str]:
            (into,) = self.compiler.object_filenames([source], output_dir=kept["output_dir"])
            changed_s = max(Path(source).stat().st_mtime, *headers)
            if Path(into).exists() and Path(into).stat().st_mtime > changed_s:
                return [into]
            return plain([source], **kept)

        def compile_all(sources: list[str], **kept: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return [path for made in pool.map(lambda s: one(s, kept), sources) for path in made]

        self.compiler.compile = compile_all
        super().build_extensions()

    def polling_thread(self) -> None:
        """A machine with a GPU needs no compiler then."""
        made = self.compiler.compile([POLLING], output_dir=self.build_temp)
        into = Path(self.build_lib, POLLING).with_suffix(".so")
        self.compiler.link_shared_object(made, str(into))

    def run(self) -> None:
        self.inplace = self.inplace or getattr(self, "editable_mode", False)
        if self.inplace:  # also those of modules that are hot no longer
            for old in Path("interlace").rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"):
                old.unlink()
        try:
            super().run()
        except BaseError as error:
            self.extensions = _none(f"the C compiler failed: {error}")
        if not self.inplace and self.extensions:  # a checkout builds it when it is needed
            self.polling_thread()
        manifest: Path = COMPILED["MANIFEST"]
        manifest.unlink(missing_ok=True)
        if self.inplace and self.extensions:
            manifest.write_text(json.dumps(SOURCES))


setup(ext_modules=extensions(), cmdclass={"build_ext": Build})
