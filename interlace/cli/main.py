"""The `interlace` command: which subcommand runs, and how errors are printed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup

from interlace.compiled import is_compiled, prefer_sources
from interlace.core.errors import RepositoryError, ServeError
from interlace.core.user_errors import InputError, UserError, remedy
from interlace.core.version import __version__


class Command(NamedTuple):
    """A subcommand: a function in a module of the same name, and the first line of its help."""

    name: str
    help: str


COMMANDS: Final = (
    Command("serve", "Profile what is new, plan, and serve a folder of models."),
    Command("check", "Check what serve would take of a model repository; no model is opened."),
    Command(
        "router", "One address for many nodes: a request goes to the one that can answer first."
    ),
    Command("fleet", "One plan and one address for many nodes."),
    Command("run", "Execute one model in this process and print its outputs."),
    Command("profile", "Measure models on this machine's GPU or cores and store the profiles."),
    Command(
        "plan",
        "The fewest GPUs for models, rates and SLOs, or how models would share this machine.",
    ),
    Command("simulate", "Simulate a scenario's requests; report goodput, latency, refusals."),
    Command("replay", "Replay a server's event log, and explain any request."),
    Command("page", "Show a log or a scenario in the browser, until Ctrl-C."),
    Command("bench", "Send open-loop load to a running server; report goodput, latency, refusals."),
    Command("top", "Watch a running server: goodput, latency, refusals and shares per model."),
)

_ABOUT: Final = """Serve many models on few accelerators and keep every latency promise.

\b
  interlace serve models/                        serve a folder of models
  interlace bench localhost:8000 NAME --rate 50  load one of them
  interlace top                                  watch
  interlace COMMAND --help                       what a command does, with examples
"""


def _placeholder() -> None:
    """Never run: stands for a command that was not asked for."""


class _Commands(TyperGroup):
    """The commands; one that was left out as not asked for is imported when it is needed.

    A shell that completes a line hands it over after the application is built.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = self.commands.get(args[0])
        if known is not None and not known.params and not hasattr(known, "commands"):
            whole: Any = typer.main.get_command(build(args[:1]))
            self.commands[args[0]] = whole.commands[args[0]]
        return super().resolve_command(ctx, args)


def build(argv: Sequence[str]) -> typer.Typer:
    """The application for these arguments.

    Only the module of the command that is asked for is imported, so that help and errors are
    instant; the rest appear by name.
    """
    app = typer.Typer(
        cls=_Commands,
        help=_ABOUT,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    asked = next((word for word in argv if not word.startswith("-")), "")
    options = {word.split("=")[0] for word in argv}
    if "--log" in options or (asked == "replay" and "--what-if" not in options):
        prefer_sources()  # a log keeps pickled engines, which compiled classes cannot be
    for name, summary in COMMANDS:
        function: Callable[..., None] | typer.Typer = _placeholder
        if name == asked:
            function = getattr(import_module(f"interlace.cli.{name}"), name)
        if isinstance(function, typer.Typer):
            app.add_typer(function, name=name, short_help=summary)
            continue
        app.command(name, short_help=summary)(function)
    app.callback()(_options)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        form = "compiled" if is_compiled() else "pure Python"
        typer.echo(f"interlace {__version__} ({form})")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version.", callback=_print_version)
    ] = False,
) -> None:
    """Options before the command."""


def main() -> None:
    """Run the command line; what the user can mend is one sentence, not a traceback."""
    try:
        build(sys.argv[1:])(prog_name="interlace")
    except ModuleNotFoundError as error:
        advice = remedy(error)
        if advice is None:
            raise
        typer.echo(f"error: {advice}", err=True)
        sys.exit(1)
    except (UserError, RepositoryError, ServeError, OSError) as error:
        typer.echo(f"error: {_words(error)}", err=True)
        sys.exit(2 if isinstance(error, InputError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)


def _words(error: Exception) -> str:
    """The error without its number, which says nothing to people."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
