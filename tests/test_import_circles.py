"""No module imports itself through others, not even for its annotations alone."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import interlace

PACKAGE = Path(interlace.__file__).parent


def modules() -> dict[str, ast.Module]:
    """Every module of the package, parsed."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = ("interlace", *path.relative_to(PACKAGE).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text())
    return found


def imported(tree: ast.Module) -> set[str]:
    """Names that a module imports outside of functions; under ``TYPE_CHECKING`` too."""
    names = set()
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            todo += ast.iter_child_nodes(node)
    return names


def test_modules_import_in_one_direction() -> None:
    found = modules()
    graph = {name: imported(tree) & found.keys() - {name} for name, tree in found.items()}
    graph = {
        # A package's own file only gathers what lies below it.
        name: {other for other in others if not name.startswith(f"{other}.")}
        for name, others in graph.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"these import each other: {' <- '.join(error.args[1])}") from None
