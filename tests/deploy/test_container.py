"""The container file: what it copies is there, what it pins is what we test, and nobody is root."""

import re
import subprocess
import tomllib
from itertools import chain

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.programs import DEPLOY

ROOT = DEPLOY.parent
TEXT = (DEPLOY / "Containerfile").read_text()


def test_what_is_copied_is_there_and_enough_to_install() -> None:
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (?!--from)(.*)$", TEXT, re.M)]
    names = {name for one in copied for name in one}
    assert all((ROOT / name).exists() for name in names)
    assert {"pyproject.toml", "setup.py", "README.md", "interlace"} <= names


def test_images_and_torch_are_pinned_to_what_we_test() -> None:
    (torch,) = re.findall(r"torch==(\S+)", TEXT)
    assert f"torch=={torch}" in (ROOT / "scripts" / "environment").read_text()
    assert re.findall(r"^FROM (\S+)", TEXT, re.M) == ["${PYTHON}", "${PYTHON}"]
    assert re.findall(r"^ARG PYTHON$", TEXT, re.M), "no default: a tag is what its owner makes it"


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


def test_what_ci_installs_is_within_what_we_allow() -> None:
    """Each requirement has one pinned version in the constraints, inside of its bounds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
    pins = {
        canonicalize_name(name): version
        for name, version in (line.split("==") for line in lines if line[0] != "#")
    }
    assert len(pins) > 100
    extras = chain.from_iterable(project["optional-dependencies"].values())
    for text in (*project["dependencies"], *extras):
        one = Requirement(text)
        if one.name in ("interlace", "nvidia-cuda-nvrtc"):  # itself; needed on a GPU alone
            continue
        assert one.specifier.contains(pins[canonicalize_name(one.name)]), text
