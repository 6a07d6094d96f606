"""What the site of these documents has besides them: pages of the public Python names, and files of the checkout that pages show.

mkdocs calls the functions by their names (`mkdocs.yml`, `hooks`).
"""

from __future__ import annotations

import inspect
import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import bandwise
import reference_impls

ROOT: Final = Path(__file__).resolve().parent.parent
API: Final = "api.md"
_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\((\.\./[^)\s]*)\)")

_INDEX: Final = re.compile(r'<autoref [^>]*?identifier="(\w+)"[^>]*>(.*?)</autoref>', re.S)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page of the public names, and the files that the documents link to outside of their folder."""
    files.append(File.generated(config, API, content=api_page()))
    for page in files.documentation_pages():
        for _, _, target in _LINK.findall(page.content_string):
            path = _outside(page.src_uri, target)
            if _shown(path) and files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with links to such files as they lie in the site; what cannot be shown there is named by its path."""
    del config, files

    def linked(found: re.Match[str]) -> str:
        sign, words, target = found.groups()
        path = _outside(page.file.src_uri, target)
        return f"{sign}[{words}]({path})" if _shown(path) else f"{words} (`{path}`)"

    return _LINK.sub(linked, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with what is an index in a docstring, `grads[rank][i]`, and no reference: a name of ours has a dot."""
    del page, config, files
    return _INDEX.sub(r"[\2][\1]", html)


def api_page() -> str:
    """Every public name of `bandwise` and of `reference_impls` with its docstring; a name that both have stands once."""
    lines = [
        "# Python",
        "",
        "What `from bandwise import ...` and `from reference_impls import ...` offer.",
        "[Use a method in your training](in-your-training.md) and [simulate your own model](your-model.md) show them at work.",
    ]
    seen: set[int] = set()
    for module in (bandwise, reference_impls):
        for name in sorted(module.__all__):
            thing: Any = getattr(module, name)
            if id(thing) in seen:
                continue
            seen.add(id(thing))
            if inspect.isclass(thing) or inspect.isroutine(thing):
                lines += ["", f"::: {thing.__module__}.{thing.__qualname__}"]
                lines += [
                    "    options:",
                    f"      heading: {module.__name__}.{name}",
                    f"      toc_label: {name}",
                ]
    return "\n".join(lines) + "\n"


def _outside(page: str, target: str) -> str:
    """The path in the checkout of what a page's link leads to."""
    at = posixpath.join("docs", posixpath.dirname(page), target.partition("#")[0])
    return posixpath.normpath(at)


def _shown(path: str) -> bool:
    """Whether a file of the checkout can stand in the site as it is: a document would bring its own links."""
    return (ROOT / path).is_file() and not path.endswith(".md")
