"""Model folders for repository tests: files without sense, where sense is not looked for."""

from pathlib import Path


def add(root: Path, name: str, files: dict[str, str]) -> Path:
    """A model folder with these files; paths may have folders in them."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return folder
