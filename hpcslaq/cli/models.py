"""`hpcslaq models`: what can be trained, with every option."""

from __future__ import annotations

import textwrap
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from hpcslaq.cli.output import emit_json, json_option, reports_errors, terminal
from hpcslaq.train.catalogue import MODELS, load_model_class
from hpcslaq.train.model import Model
from hpcslaq.train.options import Option, validate_options


@click.command("models")
@click.argument("name", required=False)
@json_option
@reports_errors
def command(name: str | None, as_json: bool) -> None:
    """List the models, or show one with all its options.

    NAME is a built-in model, `package.module:Class` or `path.py:Class`.
    """
    names = [name] if name is not None else list(MODELS)
    descriptions = [describe_model(one) for one in names]
    if as_json:
        emit_json(descriptions if name is None else descriptions[0])
    elif name is None:
        terminal().print(_overview(descriptions))
        click.echo(f"\noptions:\n{_option_names(descriptions)}\n")
        click.echo("one with its options: hpcslaq models NAME")
    else:
        _show(descriptions[0])


def describe_model(name: str) -> dict[str, Any]:
    """A model's documentation and options. Raises NotFoundError, TrainingError."""
    model_class = load_model_class(name)
    return {
        "name": name,
        "class": f"{model_class.__module__}:{model_class.__qualname__}",
        "doc": _paragraphs(model_class),
        "convergence": model_class.convergence_of(validate_options(model_class, {})).value,
        "servers": _server_solvers(model_class),
        "options": [_describe_option(key, option) for key, option in model_class.options.items()],
    }


def _server_solvers(model_class: type[Model]) -> bool | list[str]:
    """Whether parameter servers can train it; the solvers with which, where it has several."""
    solver = model_class.options.get("solver")
    values = solver.choices if solver is not None else ()
    can = [
        str(value)
        for value in values
        if not model_class.sync_problem(validate_options(model_class, {"solver": value}))
    ]
    return can or not model_class.sync_problem(validate_options(model_class, {}))


def _describe_option(key: str, option: Option) -> dict[str, Any]:
    return {
        "name": key,
        "type": option.type.__name__,
        "is_list": option.is_list,
        "valid": option.describe(),
        "choices": list(option.choices),
        "default": list(option.default) if isinstance(option.default, tuple) else option.default,
        "doc": option.doc,
    }


def _paragraphs(model_class: type[Model]) -> str:
    """The class's own docstring without its indentation; empty where it has none."""
    doc = model_class.__doc__ or ""
    return "\n".join(line.strip() for line in doc.strip().splitlines())


def _overview(descriptions: list[dict[str, Any]]) -> Table:
    table = Table("model", "convergence", "what it is", box=None, pad_edge=False)
    for model in descriptions:
        first_line = model["doc"].partition("\n")[0]
        table.add_row(*map(escape, (model["name"], model["convergence"], first_line)))
    return table


def _option_names(descriptions: list[dict[str, Any]]) -> str:
    """The names of all options of each model, in lines of a terminal's width."""
    width = max(len(model["name"]) for model in descriptions) + 2
    lines = []
    for model in descriptions:
        names = ", ".join(option["name"] for option in model["options"]) or "none"
        first, rest = model["name"].ljust(width), " " * width
        lines += textwrap.wrap(names, 79, initial_indent=first, subsequent_indent=rest)
    return "\n".join(lines)


def _show(model: dict[str, Any]) -> None:
    console = terminal()
    console.print(escape(f"{model['name']}  ({model['class']})"))
    console.print(escape(model["doc"]))
    console.print(f"convergence class (with the defaults): {model['convergence']}")
    servers = model["servers"]
    said = f"with the solvers {', '.join(servers)}" if isinstance(servers, list) else ""
    console.print(f"parameter servers: {said or ('yes' if servers else 'no')}\n")
    if not model["options"]:
        console.print("no options")
        return
    table = Table("option", "valid", "default", "meaning", box=None, pad_edge=False)
    for option in model["options"]:
        default = "none" if option["default"] is None else str(option["default"])
        table.add_row(*map(escape, (option["name"], option["valid"], default, option["doc"])))
    console.print(table)
