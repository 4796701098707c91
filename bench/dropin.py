"""Count how much of the world's Triton repositories `interlace check` takes.

    python -m bench.dropin FOLDER

FOLDER holds checkouts, one a folder: of triton-inference-server/server, or of anybody's. Weights
are not in git: files stand in for them, so that configs and Python code decide. Nothing is run.

A config is judged twice: as it lies, and alone. Alone, its model is a Python backend model if its
backend is none of ours, and members of an ensemble that lie elsewhere are there. Of the refused
some have a file ``expected`` beside them that says why Triton refuses them, too.
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

from google.protobuf import text_format

from interlace.cli.check import Checked, Verdict, checked
from interlace.core.errors import RepositoryError
from interlace.proto.messages import ModelConfigMessage
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
_SERVED: Final = ("onnxruntime", "pytorch", "python")
_PLACE: Final = re.compile(r"^.*?config\.pbtxt(:\d+)?: |^/\S+: ")


def main(folder: Path) -> None:
    """Print verdicts by checkout, and the reasons of refusals."""
    checkouts = sorted(one for one in folder.iterdir() if any(one.rglob("config.pbtxt")))
    files = list(folder.rglob("*.pbtxt"))
    print(f"{sum(map(_parses, files))} of {len(files)} files in protobuf text are a ModelConfig")
    for alone in (False, True):
        taken = total = whole = agreed = 0
        reasons: Counter[str] = Counter()
        for checkout in checkouts:
            found = list(_judged(checkout, alone))
            refused = [(path, one) for path, one in found if one.verdict is Verdict.REFUSED]
            reasons.update(_reason(path, one) for path, one in refused)
            total += len(found)
            taken += len(found) - len(refused)
            whole += not refused
            agreed += sum(_refused_by_triton(path) for path, _ in refused)
            print(f"{checkout.name}: {len(found) - len(refused)} of {len(found)} configs taken")
        how = "alone" if alone else "as they lie"
        print(
            f"{taken} of {total} configs taken {how}; {whole} of {len(checkouts)} checkouts whole"
        )
        print(f"{agreed} of {total - taken} that are refused are refused by Triton, too")
        for reason, count in reasons.most_common():
            print(f"{count:5} {reason}")


def _parses(file: Path) -> bool:
    try:
        parse_pbtxt(file.read_text(), str(file))
    except (RepositoryError, UnicodeDecodeError):
        return False
    return True


def _judged(checkout: Path, alone: bool) -> Iterator[tuple[Path, Checked]]:
    """A verdict for each model folder with a config.pbtxt; model repositories are their parents."""
    configs = sorted(checkout.rglob("config.pbtxt"))
    for repository in sorted({config.parent.parent for config in configs}):
        models = [one.parent for one in configs if one.parent.parent == repository]
        with tempfile.TemporaryDirectory() as root:
            for model in models:
                _stage(model, Path(root) / model.name, alone)
            for model in models if alone else ():
                _add_members(Path(root), model.name)
            try:
                names = folder_names(Path(root))
            except RepositoryError as error:  # a config in a version's folder, for example
                yield models[0], Checked(models[0].name, "-", "-", Verdict.REFUSED, (str(error),))
                continue
            folders = [found for name in names if (found := scan_folder(Path(root), name))]
            worst: dict[str, Checked] = {}
            own = {model.name for model in models}
            for one in checked(Path(root), folders):
                if one.model not in worst or one.verdict is Verdict.REFUSED:
                    worst[one.model] = one
            yield from ((repository / name, one) for name, one in worst.items() if name in own)


def _stage(model: Path, folder: Path, alone: bool) -> None:
    """A model folder with what git has of it, and files that stand in for the rest."""
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.onnx", "*.pt", "*.plan"))
    versions = [path for path in folder.iterdir() if path.name.isdigit()]
    try:
        config = read_config(folder)
    except RepositoryError:
        config = ModelConfig("")
    values = config.values
    if alone and config.source:
        _put_alone(folder)
    wanted = values.get("version_policy", {}).get("specific", {}).get("versions", ())
    versions = versions or [folder / str(version) for version in wanted or (1,)]
    backend = values.get("backend") or _PLATFORMS.get(values.get("platform", ""), "onnxruntime")
    backend = "python" if alone and backend not in _SERVED else backend
    name, data = _STAND_INS.get(backend, ("model.bin", b""))
    for version in versions:
        named = "" if alone else values.get("default_model_filename")
        file = version / (named or name)
        file.parent.mkdir(parents=True, exist_ok=True)
        if not (file.exists() or (version / "model.py").exists()):
            file.write_bytes(data)
    environment = values.get("parameters", {}).get("EXECUTION_ENV_PATH", {}).get("string_value", "")
    labels = [one.get("label_filename") for one in values.get("output", ())]
    for missing in (environment.removeprefix("$$TRITON_MODEL_DIRECTORY/"), *labels):
        if missing and not missing.startswith("/") and not (folder / missing).exists():
            (folder / missing).parent.mkdir(parents=True, exist_ok=True)
            (folder / missing).write_text("stands in\n")


def _put_alone(folder: Path) -> None:
    """Write a config without what it says of its backend and file, if Interlace lacks these."""
    message = ModelConfigMessage()
    text_format.Parse((folder / "config.pbtxt").read_text(), message)
    backend = message.backend or _PLATFORMS.get(message.platform, message.platform)
    if backend not in ("", "ensemble", *_SERVED):
        message.backend, message.platform = "python", ""
    message.default_model_filename = ""
    (folder / "config.pbtxt").write_text(text_format.MessageToString(message))


def _add_members(root: Path, name: str) -> None:
    """Put models in place that a config names as members of its ensemble."""
    try:
        values = read_config(root / name).values
    except RepositoryError:
        return
    for step in values.get("ensemble_scheduling", {}).get("step", ()):
        version = root / step.get("model_name", "") / "1"
        if not version.parent.exists():
            version.mkdir(parents=True)
            (version / "model.py").write_bytes(_STAND_INS["python"][1])


def _reason(model: Path, one: Checked) -> str:
    text = _PLACE.sub("", one.notes[0])
    triton = "by Triton, too: " if _refused_by_triton(model) else ""
    return triton + re.sub(r"'[^']*'|\d+", "*", text)[:110]


def _refused_by_triton(model: Path) -> bool:
    """Whether a file beside a config of Triton's tests has an error that it leads to."""
    return any(not _parses(file) for file in model.glob("expected*") if file.is_file())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
