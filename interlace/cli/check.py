"""`interlace check`: what would be served of a repository, before anything is opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from interlace.apps.graph import check_members, read_ensemble
from interlace.assembly.machine import PUBLIC, find_models, local_repository
from interlace.cli.options import Json
from interlace.cli.screen import FoldingTable, console
from interlace.core.errors import RepositoryError
from interlace.core.model import CODE_FORMATS, Format, Model
from interlace.core.rendering import json_text
from interlace.core.tables import counted
from interlace.repository.digest import Digests
from interlace.repository.draft import Draft, read
from interlace.repository.folder import ModelFolder

_UNREAD: Final = "-"


class Verdict(StrEnum):
    """What becomes of a model version."""

    SERVED = "served"
    DIFFERS = "served with a difference"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Checked:
    """One version of one model, or a folder that cannot be read."""

    model: str
    version: str
    format: str
    verdict: Verdict
    notes: tuple[str, ...]


def check(
    models: Annotated[
        str, typer.Argument(metavar="MODELS_DIR", help="The model repository, or its URL.")
    ],
    names: Annotated[list[str] | None, typer.Argument(help="Only these models.")] = None,
    as_json: Json = False,
) -> None:
    """Check what serve would take of a model repository; no model is opened.

    Each version is served, served with a difference (a setting has no effect), or refused.
    Exit code 1: something is refused.

    \b
    Examples:
      interlace check model_repository/
      interlace check model_repository/ resnet --json
    """
    root = local_repository(models)
    found = list(checked(root, find_models(root, names or ()), models.startswith(PUBLIC)))
    if as_json:
        typer.echo(json_text(found))
    else:
        _show(found)
    if any(one.verdict is Verdict.REFUSED for one in found):
        raise typer.Exit(1)


def _show(found: list[Checked]) -> None:
    made = FoldingTable(["model", "version", "format", "verdict", "why"], [], prose=("why",))
    for one in found:
        made.add_row(one.model, one.version, one.format, one.verdict.value, "\n".join(one.notes))
    console().print(made)
    parts = [(verdict, sum(one.verdict is verdict for one in found)) for verdict in Verdict]
    counts = ", ".join(f"{count} {verdict.value}" for verdict, count in parts if count)
    typer.echo(f"{counted(len(found), 'version')}: {counts}")


def checked(root: Path, folders: list[ModelFolder], strangers: bool) -> Iterator[Checked]:
    """Judge each version of these models of a repository, and each folder that is none.

    Code of ``strangers`` runs only if the operator says so.
    """
    digests, drafts = Digests(), dict[tuple[str, int], Draft | str]()
    for folder in folders:
        if folder.error is not None:
            yield Checked(folder.name, _UNREAD, _UNREAD, Verdict.REFUSED, (folder.error,))
        for version in folder.versions:
            try:
                drafts[folder.name, version] = read(root, folder.name, version, digests=digests)
            except RepositoryError as error:
                drafts[folder.name, version] = str(error)
    served = {name: one for (name, _), one in sorted(drafts.items()) if isinstance(one, Draft)}
    for (name, version), draft in drafts.items():
        if isinstance(draft, str):
            yield Checked(name, str(version), _UNREAD, Verdict.REFUSED, (draft,))
        else:
            verdict, notes = _judged(draft, served, strangers)
            yield Checked(name, str(version), draft.format.value, verdict, notes)


def _judged(
    draft: Draft, served: Mapping[str, Draft], strangers: bool
) -> tuple[Verdict, tuple[str, ...]]:
    if draft.format is Format.ENSEMBLE:
        try:
            _check_ensemble(draft, served)
        except RepositoryError as error:
            return Verdict.REFUSED, (str(error),)
    verdict = Verdict.DIFFERS if draft.notes else Verdict.SERVED
    if strangers and draft.format in CODE_FORMATS:
        return verdict, ("it is code: served only if --trust-models names it", *draft.notes)
    return verdict, draft.notes


def _check_ensemble(draft: Draft, served: Mapping[str, Draft]) -> None:
    """The graph, that its members are there and, as far as their configs say, that they fit.

    Raises:
        RepositoryError: what is wrong.
    """

    def find(name: str, version: str) -> Model:
        return served[name].provisional()

    signature = draft.provisional().signature
    app = read_ensemble(draft)
    for place, step in zip(app.places, app.steps, strict=True):
        if step.model not in served:
            key = f"ensemble_scheduling.step[{place}].model_name"
            raise draft.config.error(key, f"'{step.model}'", "a model that is served")
    if all(_described(served[step.model]) for step in app.steps):
        check_members(app, signature, find, draft.config)


def _described(draft: Draft) -> bool:
    """True if the config says all of the signature; else the model says the rest once opened."""
    signature = draft.provisional().signature
    return bool(signature.inputs and signature.outputs) and draft.asked_batch is not None
