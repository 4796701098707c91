"""docs/commands.md: every command with its arguments and options."""

import inspect
import re
from collections import Counter
from collections.abc import Container, Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer
from typer.core import TyperGroup

from interlace.cli.main import COMMANDS, build
from interlace.core.gpu_kinds import GPU_KINDS
from interlace.policy.catalog import CATALOG

from .markdown import sentence, table

_START = """# Commands

`interlace COMMAND --help` shows the same with examples. `-h` is `--help`; `interlace -V` prints the
version, and `interlace --install-completion` installs completion for your shell.

## Exit codes

| code | meaning |
| --- | --- |
| 0 | done |
| 1 | failed: a file, a server, a model, or a replayed decision that differs |
| 2 | wrong usage: an unknown option, a wrong value, or a wrong scenario |
| 3 | promise not kept: `plan` and `fleet plan` leave a model unserved, or an SLO is missed |
| 130 | ended by Ctrl-C |

## Names
"""
_SHARED = """
## Shared options

A command lists those that it has after "Also". Options in its own table differ from these.
"""


def page() -> str:
    found = dict(_commands())
    counts = Counter(_key(one) for command in found.values() for one in _options(command))
    most = {key[0]: key for key, _ in reversed(counts.most_common())}  # one meaning a name
    shared = {
        _key(one): (command, one)
        for command in found.values()
        for one in _options(command)
        if counts[_key(one)] > 1 and most[one.opts[0]] == _key(one)
    }
    lines = [_START, *_names(), _SHARED]
    lines += table(["option", "default", "meaning"], [_row(*shared[key]) for key in sorted(shared)])
    for name, command in found.items():
        lines += _section(name, command, shared)
    return "\n".join([*lines, ""])


def _commands() -> Iterator[tuple[str, Any]]:
    """Each command by its words, groups by those of their commands."""
    for one in COMMANDS:
        whole: Any = typer.main.get_command(build([one.name]))
        command = whole.commands[one.name]
        if isinstance(command, TyperGroup):
            yield from ((f"{one.name} {name}", c) for name, c in command.commands.items())
        else:
            yield one.name, command


def _options(command: Any) -> list[Any]:
    kinds = [one for one in command.params if one.param_type_name == "option"]
    return [one for one in kinds if "--help" not in one.opts]


def _key(option: Any) -> tuple[str, ...]:
    return option.opts[0], option.metavar or "", option.help or "", str(option.default)


def _names() -> list[str]:
    return [
        f"Systems: {', '.join(CATALOG)}.",
        "",
        f"Kinds of GPU: {', '.join(GPU_KINDS)}.",
    ]


def _row(command: Any, option: Any) -> list[str]:
    text = option.help.replace(", ".join(CATALOG), "a [name](#names)")
    text = text.replace(", ".join(GPU_KINDS), "see [names](#names)")
    text, _, told = text.partition("  [default: ")
    told = told.removesuffix("]")
    default = option.default
    if option.is_flag or default in (None, ""):
        shown = told or "-"
    else:
        shown = f"{default:g}" if isinstance(default, float) else getattr(default, "value", default)
    if option.envvar:
        text = f"{text.rstrip('.')}. Environment: `{option.envvar}`"
    return [
        f"`{option.opts[0]}{_metavar(option, _hint(command, option))}`",
        str(shown),
        sentence(text),
    ]


def _hint(command: Any, option: Any) -> Any:
    """The type of an option's value."""
    given = inspect.signature(command.callback, eval_str=True).parameters[option.name].annotation
    return get_args(given)[0] if get_origin(given) is Annotated else given


def _metavar(option: Any, kind: Any) -> str:
    """What follows the option on the command line; its type says it where nothing else does."""
    if option.is_flag:
        return ""
    if option.metavar:
        return f" {option.metavar}"
    while inner := [one for one in get_args(kind) if one is not type(None)]:  # list[X] | None
        kind = inner[0]
    if issubclass(kind, Enum):
        return f" {'|'.join(member.value for member in kind)}"
    return f" {({int: 'N', float: 'X', Path: 'PATH'}).get(kind, 'TEXT')}"


def _section(name: str, command: Any, shared: Container[tuple[str, ...]]) -> list[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    words = " ".join(_usage(one) for one in arguments)
    own = [one for one in _options(command) if _key(one) not in shared]
    others = [one.opts[0] for one in _options(command) if _key(one) in shared]
    text = re.split(r"\n\s*\n?\x08", command.help)[0]
    paragraphs = [" ".join(one.split()) for one in text.split("\n\n")]
    rows = [[f"`{_usage(one)}`", _argument_default(one), sentence(one.help)] for one in arguments]
    rows += [_row(command, one) for one in own]
    lines = [f"\n## interlace {name}\n", f"`interlace {name} [OPTIONS] {words}".rstrip() + "`"]
    for one in paragraphs:
        lines += ["", one]
    if rows:
        lines += ["", *table(["argument or option", "default", "meaning"], rows)]
    if others:
        lines += ["", f"Also: {', '.join(f'`{one}`' for one in sorted(others))}."]
    return lines


def _usage(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    optional = not argument.required and not name.startswith("[")
    return f"[{name}]" if optional else name


def _argument_default(argument: Any) -> str:
    return "required" if argument.required else f"{argument.default or '-'}"
