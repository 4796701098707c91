"""The container file: what it copies is there, what it pins is what we test, and nobody is root."""

import re
import subprocess
import tomllib
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.programs import DEPLOY

ROOT = DEPLOY.parent
TEXT = (DEPLOY / "Containerfile").read_text()


def pins(file: Path) -> dict[str, str]:
    """Versions by name."""
    found = re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)", file.read_text(), re.M)
    return {canonicalize_name(name): version for name, version in found}


def test_what_is_copied_is_there_and_enough_to_install() -> None:
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (?!--from)(.*)$", TEXT, re.M)]
    names = {name for one in copied for name in one}
    assert all((ROOT / name).exists() for name in names)
    assert {"pyproject.toml", "setup.py", "README.md", "interlace"} <= names


def test_images_and_torch_are_pinned_to_what_we_test() -> None:
    torch = pins(DEPLOY / "requirements.txt")["torch"]
    assert f"torch=={torch}" in (ROOT / "scripts" / "environment").read_text()
    assert re.findall(r"^FROM (\S+)", TEXT, re.M) == ["${PYTHON}", "${PYTHON}"]
    assert re.findall(r"^ARG PYTHON$", TEXT, re.M), "no default: a tag is what its owner makes it"


def test_packages_are_what_is_tested_by_their_hashes() -> None:
    """pip refuses a file of another hash, and whatever has none."""
    text = (DEPLOY / "requirements.txt").read_text()
    blocks = re.split(r"^(?=[a-z])", re.sub(r"^#.*\n", "", text, flags=re.M), flags=re.M)[1:]
    assert len(blocks) > 50
    for block in blocks:
        assert re.fullmatch(r"\S+==\S+( \\\n +--hash=sha256:[0-9a-f]{64})+\s*", block), block[:80]
    installed, tested = pins(DEPLOY / "requirements.txt"), pins(ROOT / ".ci" / "constraints.txt")
    assert {name: tested.get(name, found) for name, found in installed.items()} == installed
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    chosen = (one for extra in ("serve", "cuda", "otel") for one in extras[extra])
    wanted = (*project["dependencies"], *chosen, "setuptools>=77", "mypy")
    for one in map(Requirement, wanted):
        if one.name != "interlace":
            assert one.specifier.contains(installed[canonicalize_name(one.name)]), one
    assert "--require-hashes -r requirements.txt" in TEXT and "--no-deps --no-build" in TEXT


def test_a_base_without_a_digest_is_refused() -> None:
    (check,) = re.findall(r"^RUN (case .*)$", TEXT, re.M)
    for base, status in (("python:3.12", 1), ("python:3.12@sha256:" + 64 * "0", 0), ("", 1)):
        ran = subprocess.run(
            ["sh", "-c", check], env={"PYTHON": base}, capture_output=True, check=False
        )
        assert ran.returncode == status, ran.stdout


def test_the_last_stage_is_nobodys_and_starts_our_program() -> None:
    last = TEXT.rpartition("FROM ")[2]
    user = re.search(r"^USER (\d+):(\d+)$", last, re.M)
    assert user is not None and min(map(int, user.groups())) > 0
    assert 'ENTRYPOINT ["interlace"]' in last and "gcc" not in last


#: The package itself, what is needed on a GPU alone, and what reads stores that CI does not have.
NOT_IN_CI = ("interlace", "nvidia-cuda-nvrtc", "tensorrt", "s3fs", "gcsfs", "adlfs")


def test_what_ci_installs_is_within_what_we_allow() -> None:
    """Each requirement has one pinned version in the constraints, inside of its bounds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tested = pins(ROOT / ".ci" / "constraints.txt")
    assert len(tested) > 100
    extras = chain.from_iterable(project["optional-dependencies"].values())
    for text in (*project["dependencies"], *extras):
        one = Requirement(text)
        if one.name in NOT_IN_CI:
            continue
        assert one.specifier.contains(tested[canonicalize_name(one.name)]), text
