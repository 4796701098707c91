"""Count how much of the world's Triton repositories `interlace check` takes.

    python -m bench.dropin FOLDER

FOLDER holds checkouts, one a folder: of triton-inference-server/server, or of anybody's. Weights
are not in git: files stand in for them, so that configs and Python code decide. Nothing is run.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from interlace.cli.check import Checked, Verdict, checked
from interlace.core.errors import RepositoryError
from interlace.repository.folder import folder_names, read_config, scan_folder
from interlace.repository.model_config import ModelConfig, parse_pbtxt

_STAND_INS: Final = {
    "onnxruntime": ("model.onnx", b"\x08\x08"),
    "pytorch": ("model.pt", b"PK\x03\x04"),
    "python": ("model.py", b"class TritonPythonModel:\n    pass\n"),
    "tensorrt": ("model.plan", b"ftrt"),
}
_PLATFORMS: Final = {
    "onnxruntime_onnx": "onnxruntime", "pytorch_libtorch": "pytorch", "tensorrt_plan": "tensorrt",
}  # fmt: skip
_PLACE: Final = re.compile(r"^.*?config\.pbtxt(:\d+)?: |^/\S+: ")


def main(folder: Path) -> None:
    """Print verdicts by checkout, and the reasons of refusals."""
    taken = total = whole = 0
    reasons: Counter[str] = Counter()
    checkouts = sorted(path for path in folder.iterdir() if path.is_dir())
    for checkout in checkouts:
        found = list(_judged(checkout))
        refused = [one for one in found if one.verdict is Verdict.REFUSED]
        reasons.update(_reason(one) for one in refused)
        total += len(found)
        taken += len(found) - len(refused)
        whole += bool(found) and not refused
        print(f"{checkout.name}: {len(found) - len(refused)} of {len(found)} configs taken")
    print(f"{taken} of {total} configs taken; {whole} of {len(checkouts)} checkouts whole")
    files = list(folder.rglob("*.pbtxt"))
    print(f"{sum(map(_parses, files))} of {len(files)} files in protobuf text are a ModelConfig")
    for reason, count in reasons.most_common():
        print(f"{count:5} {reason}")


def _parses(file: Path) -> bool:
    try:
        parse_pbtxt(file.read_text(), str(file))
    except (RepositoryError, UnicodeDecodeError):
        return False
    return True


def _judged(checkout: Path) -> Iterator[Checked]:
    """A verdict for each model folder with a config.pbtxt; model repositories are their parents."""
    configs = sorted(checkout.rglob("config.pbtxt"))
    for repository in sorted({config.parent.parent for config in configs}):
        models = [one.parent for one in configs if one.parent.parent == repository]
        with tempfile.TemporaryDirectory() as root:
            for model in models:
                _stage(model, Path(root) / model.name)
            try:
                names = folder_names(Path(root))
            except RepositoryError as error:  # a config in a version's folder, for example
                yield Checked(models[0].name, "-", "-", Verdict.REFUSED, (str(error),))
                continue
            folders = [found for name in names if (found := scan_folder(Path(root), name))]
            worst: dict[str, Checked] = {}
            for one in checked(Path(root), folders):
                if one.model not in worst or one.verdict is Verdict.REFUSED:
                    worst[one.model] = one
            yield from worst.values()


def _stage(model: Path, folder: Path) -> None:
    """A model folder with what git has of it, and files that stand in for the rest."""
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.onnx", "*.pt", "*.plan"))
    versions = [path for path in folder.iterdir() if path.name.isdigit()]
    try:
        config = read_config(folder)
    except RepositoryError:
        config = ModelConfig("")
    values = config.values
    wanted = values.get("version_policy", {}).get("specific", {}).get("versions", ())
    versions = versions or [folder / str(version) for version in wanted or (1,)]
    backend = values.get("backend") or _PLATFORMS.get(values.get("platform", ""), "onnxruntime")
    name, data = _STAND_INS.get(backend, ("model.bin", b""))
    for version in versions:
        file = version / (values.get("default_model_filename") or name)
        file.parent.mkdir(parents=True, exist_ok=True)
        if not (file.exists() or (version / "model.py").exists()):
            file.write_bytes(data)
    environment = values.get("parameters", {}).get("EXECUTION_ENV_PATH", {}).get("string_value", "")
    labels = [one.get("label_filename") for one in values.get("output", ())]
    for missing in (environment.removeprefix("$$TRITON_MODEL_DIRECTORY/"), *labels):
        if missing and not missing.startswith("/") and not (folder / missing).exists():
            (folder / missing).parent.mkdir(parents=True, exist_ok=True)
            (folder / missing).write_text("stands in\n")


def _reason(one: Checked) -> str:
    text = _PLACE.sub("", one.notes[0])
    return re.sub(r"'[^']*'|\d+", "*", text)[:110]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
