"""A repository folder: models, versions and formats in it; files read with care."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Final

from interlace.core.errors import RepositoryError
from interlace.core.model import MODEL_FILES, Format
from interlace.formats.page_cache import open_regular
from interlace.repository.app_table import app_config
from interlace.repository.model_config import FILLED, ModelConfig, parse_pbtxt

_POINTER: Final = b"version https://git-lfs"
_ZIP: Final = "a zip archive, as torch writes them"
#: How files begin that are taken for models, by what they are.
_CONTENTS: Final[Mapping[str, tuple[bytes, ...]]] = {
    "a web page": (b"<!doctype html", b"<html"),
    "an XML document": (b"<?xml",),
    "JSON text": (b"{", b"["),
    "a gzip file": (b"\x1f\x8b",),
    "an HDF5 file": (b"\x89hdf",),
    _ZIP: (b"pk\x03\x04",),
    "a pickle, as torch.save wrote them before 2020": (b"\x80\x02", b"\x80\x03", b"\x80\x04"),
}
_BINARY: Final = (Format.ONNX, Format.TORCHSCRIPT, Format.EXPORTED, Format.TENSORRT)
_OWN: Final = {Format.TORCHSCRIPT: (_ZIP,), Format.EXPORTED: (_ZIP,)}


def check_content(file: Path, format: Format | None = None) -> None:
    """Refuse what is plainly something else than a file of that format: a pointer, a web page.

    Raises:
        RepositoryError: what it is.
        OSError: it cannot be read.
    """
    with open_regular(file) as opened:
        head = opened.read(512)
    _check_no_pointer(file, head)
    if format is None:
        return
    own = _OWN.get(format, ())
    text = head.lstrip().lower()
    found = ""
    for what, begins in _CONTENTS.items():
        if what not in own and any(text.startswith(one) for one in begins):
            found = what
    if head[8:10] == b'{"' and format is not Format.HUGGINGFACE:
        found = "a safetensors file"
    if found:
        raise RepositoryError(str(file), found, f"a model of {format.value}")


def _check_no_pointer(file: Path, head: bytes) -> None:
    if head.startswith(_POINTER):
        expected = "the file itself: run git lfs pull in the repository"
        raise RepositoryError(str(file), "a Git LFS pointer", expected)


def leads_out(name: str) -> bool:
    """Whether a path, as written, leads out of its folder."""
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts


def read_text(file: Path, limit_bytes: int) -> str:
    """The text of a regular file.

    Raises:
        RepositoryError: it is none, cannot be read, is larger than that, or not UTF-8.
    """
    try:
        with open_regular(file) as opened:
            data = opened.read(limit_bytes + 1)
    except OSError as error:
        raise RepositoryError(str(file), str(error), "a readable file") from error
    _check_no_pointer(file, data)
    if len(data) > limit_bytes:
        found = f"{os.stat(file).st_size} bytes"
        raise RepositoryError(str(file), found, f"at most {limit_bytes}")
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise RepositoryError(str(file), f"no text ({error})", "text in UTF-8") from error


CONFIG_FILE: Final = "config.pbtxt"
SETTINGS_FILE: Final = "interlace.toml"
#: The largest ``config.pbtxt`` or ``interlace.toml`` that is read.
CONFIG_BYTES: Final = 1 << 20
_VERSION: Final = re.compile(r"[1-9][0-9]{0,17}")
_NAME: Final = re.compile(r"[^./\\#\x00-\x1f\x7f][^/\\#\x00-\x1f\x7f]{0,199}")

_PYTHON_CLASS: Final = re.compile(r"^\s*class TritonPythonModel\b", re.MULTILINE)

#: Git LFS leaves a smaller file in place of a large one.
_POINTER_BYTES: Final = 1024
_PICKLES: Final = (".bin", ".pth", ".pkl", ".ckpt")
_HF_FILE: Final = "config.json"
#: What a model takes, instead of the model; beside a model it is only its profile.
PROFILE_FILE: Final = "profile.csv"

#: Triton's names of backends and platforms, and what may lie in the version folder for each.
_BACKENDS: Final[Mapping[str, tuple[Format, ...]]] = {
    "onnxruntime": (Format.ONNX,),
    "onnxruntime_onnx": (Format.ONNX,),
    "pytorch": (Format.TORCHSCRIPT, Format.EXPORTED, Format.FACTORY),
    "pytorch_libtorch": (Format.TORCHSCRIPT,),
    "python": (Format.PYTHON, Format.FACTORY),
    "huggingface": (Format.HUGGINGFACE,),
}

_EXPORTED: Final = '1/model.onnx with backend: "onnxruntime"'
_CODE: Final = '1/model.py with backend: "python"'
_PLAN: Final = (
    "a TensorRT plan, which one kind of GPU and one version of TensorRT can run",
    f"the ONNX model that it was built from, as {_EXPORTED}; or such a GPU, and "
    "pip install 'interlace[tensorrt]'",
)
_TENSORFLOW: Final = ("a TensorFlow model", f"{_EXPORTED}, as tf2onnx exports it")
#: Backends of Triton that are not served: what their models are, and what to serve instead.
_INSTEAD: Final[Mapping[str, tuple[str, str]]] = {
    "tensorrt": _PLAN,
    "tensorrt_plan": _PLAN,
    "tensorflow": _TENSORFLOW,
    "tensorflow_graphdef": _TENSORFLOW,
    "tensorflow_savedmodel": _TENSORFLOW,
    "openvino": ("an OpenVINO model", f"the model that it was made from, as {_EXPORTED}"),
    "fil": ("a forest of trees", f"{_EXPORTED}, as onnxmltools or skl2onnx exports it; or {_CODE}"),
    "dali": ("a DALI pipeline", f"{_CODE} that does the same, or clients that do"),
    "vllm": ("a language model of vLLM", "vLLM's own server: vllm serve"),
    "tensorrtllm": ("a TensorRT-LLM engine", "TensorRT-LLM's own server: trtllm-serve"),
}


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """One model folder: the versions its policy selects, or why it cannot be served."""

    name: str
    versions: tuple[int, ...] = ()
    error: str | None = None


def scan(root: Path) -> list[ModelFolder]:
    """Every model folder of a repository, by name; a broken one keeps no other from being found.

    Raises:
        RepositoryError: ``root`` is no folder that can be listed, or a model's own.
    """
    looked = (scan_folder(root, name) for name in folder_names(root))
    return [found for found in looked if found is not None]


def _check_no_model(root: Path, names: Sequence[str]) -> None:
    """Refuse a model's folder, or a version's, where the repository is asked for."""
    whole = root.absolute()
    described = any((root / name).exists() for name in (CONFIG_FILE, SETTINGS_FILE))
    for name in filter(_VERSION.fullmatch, names):
        if described or _model_file(root / name):
            found = f"a model: version {name} is in it"
            raise RepositoryError(str(root), found, f"its parent, {whole.parent}")
    file = _model_file(root)
    if file and not any(_VERSION.fullmatch(path.name) for path in root.glob("*/*")):
        version = _VERSION.fullmatch(whole.name)
        parent = str(whole.parent.parent) if version else "with this as NAME/1 in it"
        raise RepositoryError(str(root), f"{file} in it", f"the model repository, {parent}")


def _model_file(folder: Path) -> str:
    """What in a folder is a model, by its name; empty if nothing is."""
    usual = (*MODEL_FILES.values(), _HF_FILE)
    suffixes = (".onnx", ".pt", ".pt2")
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return ""
    return next((name for name in names if name in usual or name.endswith(suffixes)), "")


def folder_names(root: Path) -> list[str]:
    """What may be model folders, in order; nothing behind a link is looked at.

    Raises:
        RepositoryError: ``root`` is no folder that can be listed, or a model's own.
    """
    try:
        with os.scandir(root) as entries:
            there = [e.name for e in entries if e.is_symlink() or e.is_dir(follow_symlinks=False)]
    except OSError as error:
        reason = error.strerror or str(error)
        raise RepositoryError(str(root), reason.lower(), "a model repository: a folder") from error
    _check_no_model(root, there)
    return sorted(name for name in there if not name.startswith((".", "__pycache__")))


def scan_folder(root: Path, name: str) -> ModelFolder | None:
    """One model folder; ``None`` if there is no folder of that name.

    Raises:
        RepositoryError: the name is none that a folder may have, and no folder has it.
    """
    folder = root / name
    try:
        check_name(name)
    except RepositoryError as error:
        if "/" in name or name in ("", ".", "..") or not os.path.isdir(folder):
            raise
        shown = name if name.isprintable() else ascii(name)[1:-1]  # in logs, metrics and clients
        return ModelFolder(shown, (), str(error))
    if not os.path.isdir(folder):
        return None
    try:
        return ModelFolder(name, select_versions(folder, read_config(folder)))
    except (OSError, RepositoryError) as error:
        return ModelFolder(name, (), str(error))


def check_name(name: str) -> None:
    """Refuse names that are no folder's, or would lead out of the repository.

    Raises:
        RepositoryError: the name begins with a dot, has a slash or control character in it, or is
            no UTF-8.
    """
    text = name.encode(errors="replace").decode() == name  # else it is no UTF-8
    if not text or not _NAME.fullmatch(name):
        expected = "UTF-8, 1 to 200 characters, no slash, '#' or control character, no dot first"
        raise RepositoryError("model name", repr(name[:200]), expected)


def read_config(folder: Path) -> ModelConfig:
    """The ``config.pbtxt`` of a model folder, or the app in its ``interlace.toml``; else empty.

    Raises:
        RepositoryError: it cannot be read, is no ModelConfig, names another model, or both files
            describe one.
    """
    file = folder / CONFIG_FILE
    settings = folder / SETTINGS_FILE
    app = None
    if settings.exists():
        app = app_config(read_text(settings, CONFIG_BYTES), str(settings))
    if not file.exists():
        return app or ModelConfig(str(file))
    if app is not None:
        raise app.error("app", f"an app, besides {CONFIG_FILE}", "one of them")
    config = parse_pbtxt(read_text(file, CONFIG_BYTES), str(file))
    return check_config_name(config, folder.name)


def check_config_name(config: ModelConfig, folder_name: str) -> ModelConfig:
    """The same config, if its ``name`` is absent or the folder's.

    Raises:
        RepositoryError: it is another.
    """
    name = config.values.get("name", "")
    if name and name != folder_name:
        raise config.error("name", f"'{name}'", f"'{folder_name}', as the folder, or none")
    return config


def is_ensemble(config: ModelConfig) -> bool:
    """True for a config that joins other models, and has no model file of its own."""
    values = config.values
    return "ensemble_scheduling" in values or values.get("platform") == "ensemble"


def select_versions(folder: Path, config: ModelConfig) -> tuple[int, ...]:
    """The versions that ``version_policy`` selects, ascending; without one, the newest.

    An ensemble without a version folder has version 1.

    Raises:
        RepositoryError: there is no version folder, or none of the specific ones.
    """
    present = sorted(
        int(entry.name)
        for entry in folder.iterdir()
        if _VERSION.fullmatch(entry.name) and entry.is_dir()
    )
    if not present and is_ensemble(config):
        return (1,)
    if not present:
        expected = "one named 1, 2, ... with the model in it"
        if any(_VERSION.fullmatch(path.name) for path in folder.glob("*/*")):
            expected += f" (a model repository of its own: serve {folder})"
        raise RepositoryError(str(folder), "no version folder", expected)
    policy = config.values.get("version_policy", {})
    if "all" in policy:
        return tuple(present)
    if "specific" in policy:
        return _specific(policy["specific"].get("versions", []), present, config)
    count = policy.get("latest", {}).get("num_versions", 1)
    if count < 1:
        raise config.error("version_policy.latest.num_versions", str(count), "at least 1")
    return tuple(present[-count:])


def _specific(
    wanted: Sequence[int], present: Sequence[int], config: ModelConfig
) -> tuple[int, ...]:
    there = sorted(set(wanted) & set(present))
    if not there:
        found = f"version {min(wanted)}, which has no folder" if wanted else "no version"
        known = ", ".join(map(str, present))
        raise config.error("version_policy.specific.versions", found, f"some of {known}")
    return tuple(there)


def find_model(folder: Path, config: ModelConfig) -> tuple[Format, str]:
    """The format of the model in a version folder, and its file unless that has the usual name.

    ``default_model_filename`` says which file, else the usual names; among several, the backend.

    Raises:
        RepositoryError: no model, several, one of an unsupported kind, or not the stated backend's.
    """
    if is_ensemble(config):
        return Format.ENSEMBLE, ""
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    _check_no_pointers(folder)
    asked = config.values.get("default_model_filename", "")
    files = dict(MODEL_FILES)
    if asked:
        form = _format_of(asked, config)
        alike = [one for one, usual in MODEL_FILES.items() if usual == MODEL_FILES[form]]
        files = dict.fromkeys(alike, asked)
    formats = [
        format
        for format, name in files.items()
        if (folder / name).exists() and _is_of_kind(folder / name, format)
    ]
    if not asked and _HF_FILE in names and any(name.endswith(".safetensors") for name in names):
        formats.append(Format.HUGGINGFACE)
    if not formats and PROFILE_FILE in names:
        return Format.PROFILE, ""
    if asked and not formats:
        key = "default_model_filename"
        raise config.error(key, f"'{asked}', which is not in {folder}", "a file that is there")
    allowed = _allowed(config)
    fitting = [format for format in formats if allowed is None or format in allowed]
    if len(fitting) == 1:
        file = _file(folder, fitting[0], files.get(fitting[0], ""))
        weights = [name for name in names if name.endswith(".safetensors")]
        binary = fitting[0] in _BINARY
        own = [file or MODEL_FILES[fitting[0]]] if binary else []
        for one in weights if fitting[0] is Format.HUGGINGFACE else own:
            check_content(folder / one, fitting[0])
        return fitting[0], file
    if formats and not fitting:
        key = "backend" if config.values.get("backend") else "platform"
        known = " or ".join(format.value for format in allowed or ())
        raise config.error(key, f"{folder} with a model of {formats[0].value}", known)
    if fitting:
        found = "several models: " + ", ".join(format.value for format in fitting)
        raise RepositoryError(
            str(folder), found, "one, or a backend in config.pbtxt that says which"
        )
    raise RepositoryError(str(folder), _what_lies_there(names), _WANTED)


def _check_no_pointers(folder: Path) -> None:
    for path in sorted((*folder.glob("*"), *folder.glob("*/*"))):
        if path.is_file() and path.stat().st_size < _POINTER_BYTES:
            check_content(path)


def _runs_plans() -> bool:
    """Whether TensorRT is installed: nobody has it who did not ask for it."""
    return find_spec("tensorrt") is not None


def _allowed(config: ModelConfig) -> tuple[Format, ...] | None:
    for key in ("backend", "platform"):
        name = config.values.get(key, "")
        if name:
            if _INSTEAD.get(name) is _PLAN and _runs_plans():
                return (Format.TENSORRT,)
            if name in _INSTEAD:
                raise config.error(key, f"'{name}': {_INSTEAD[name][0]}", _INSTEAD[name][1])
            if name not in _BACKENDS:
                known = f"one of {', '.join(_BACKENDS)}, or none"
                others = f"{known}; export it to {_EXPORTED}, or write {_CODE}"
                raise config.error(key, f"'{name}'", FILLED if "${" in name else others)
            return _BACKENDS[name]
    return None


def _format_of(filename: str, config: ModelConfig) -> Format:
    usual = next((one for one in MODEL_FILES if Path(filename).suffix == _suffix(one)), None)
    if usual is None and (allowed := _allowed(config)) and allowed[0] in MODEL_FILES:
        usual = allowed[0]  # a backend takes any name
    hidden = any(part.startswith(".") for part in filename.split("/"))
    if usual is None or hidden or filename.startswith("/"):
        known = ", ".join(map(_suffix, MODEL_FILES))
        expected = f"a file of the version folder that ends in one of {known}"
        raise config.error("default_model_filename", f"'{filename}'", expected)
    if usual is Format.TENSORRT and not _runs_plans():
        raise config.error("default_model_filename", *_PLAN)
    return usual


def _is_of_kind(file: Path, format: Format) -> bool:
    """Whether a file of a format's name is of it, and can run: two have a ``model.py``."""
    if format not in (Format.FACTORY, Format.PYTHON):
        return format is not Format.TENSORRT or _runs_plans()
    text = ""
    if file.is_file():
        with open_regular(file) as opened:
            text = opened.read(CONFIG_BYTES).decode(errors="replace")
    named = "TritonPythonModel" in text and "create_model" not in text
    return (format is Format.PYTHON) == (named or _PYTHON_CLASS.search(text) is not None)


def _suffix(format: Format) -> str:
    return Path(MODEL_FILES[format]).suffix


def _file(folder: Path, format: Format, name: str) -> str:
    """The file's path in the folder; empty if it is the usual one, or if there are several."""
    if not (folder / name).is_dir() or format is Format.HUGGINGFACE:
        return "" if name == MODEL_FILES.get(format, "") else name
    inner = MODEL_FILES[format]  # beside it may lie what it refers to, as external data
    if format is not Format.ONNX or not (folder / name / inner).is_file():
        expected = "a file; of ONNX, a folder with model.onnx in it as well"
        raise RepositoryError(str(folder / name), "a folder", expected)
    return f"{name}/{inner}"


_WANTED: Final = "model.onnx, model.pt, model.pt2, model.py, or config.json with *.safetensors"


def _what_lies_there(names: Sequence[str]) -> str:
    if not names:
        return "no model file"
    if _HF_FILE in names and any(name.endswith(_PICKLES) for name in names):
        return "a Hugging Face model whose weights are a pickle, which is never loaded"
    if any(name.endswith((".plan", ".engine")) for name in names):
        return f"{_PLAN[0]}, and not {_PLAN[1]}"
    return "no model file among " + ", ".join(names[:8])
