"""Templates and what stands inside every page: styles and script."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

HERE = Path(__file__).resolve().parent


def template(name: str) -> Template:
    """A template; everything that it is given is escaped."""
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)


def asset(name: str) -> str:
    """A file of the folder `static`."""
    return (HERE / "static" / name).read_text(encoding="utf-8").strip()
