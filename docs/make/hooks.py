"""Hooks of mkdocs: files of the repository that pages link to are pages of the site, too.

A link of a page to a file outside of docs works on GitHub as it stands. In the site it leads to a page made
of that file: Markdown as it is, notebooks as their cells, other files as code. What does not exist is a
warning, with which `mkdocs build --strict` fails.
"""

import json
import logging
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[2]
LOG = logging.getLogger("mkdocs.hooks")
FOLDER = "repository"
"""The folder of the site with the pages made of files outside of docs."""
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
_LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".proto": "proto", ".yml": "yaml"}


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each file of the repository that a page links to, directly or over others."""
    waiting = [(f"docs/{file.src_uri}", Path(str(file.abs_src_path))) for file in files.documentation_pages()]
    seen: set[str] = set()
    while waiting:
        name, path = waiting.pop()
        for match in _LINK.finditer(path.read_text()):
            target = _target(name, match[2])
            if target in seen or target.startswith("docs/") or not (ROOT / target).is_file():
                continue
            seen.add(target)
            uri = _uri(target)
            page = File.generated(config, uri, content=_content(target), inclusion=InclusionLevel.NOT_IN_NAV)
            files.append(page)
            if target.endswith(".md"):
                waiting.append((target, ROOT / target))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links out of docs lead to the pages made of these files."""
    uri = page.file.src_uri
    if uri.startswith((f"{FOLDER}/", "decisions/")):
        page.meta["search"] = {"exclude": True}  # they would hide the pages that say what to do
    elif uri == "troubleshooting.md":
        page.meta["search"] = {"boost": 10}
    name = uri.removeprefix(f"{FOLDER}/") if uri.startswith(f"{FOLDER}/") else f"docs/{uri}"
    if name == uri or name.startswith("docs/") or name in _markdown_files(files):
        return _LINK.sub(lambda match: _rewritten(match, name, uri), markdown)
    return markdown


def _markdown_files(files: Files) -> set[str]:
    return {file.src_uri.removeprefix(f"{FOLDER}/") for file in files}


def _target(name: str, link: str) -> str:
    """The path in the repository that a link of the file `name` means."""
    return os.path.normpath(PurePosixPath(name).parent / link)


def _uri(target: str) -> str:
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"{FOLDER}/{target}" if target.endswith(".md") else f"{FOLDER}/{target}.md"


def _rewritten(match: re.Match[str], name: str, uri: str) -> str:
    target = _target(name, match[2])
    if name.startswith("docs/") and target.startswith("docs/") and target != "docs":
        return match[0]
    if (ROOT / target).is_dir():
        if not (ROOT / target / "README.md").exists():
            LOG.warning(f"{name} links to a folder without a README.md, {target}: link to a file")
        target += "/README.md"
    elif not (ROOT / target).is_file():
        LOG.warning(f"{name} links to {match[2]}, which does not exist")
    return match[1] + os.path.relpath(_uri(target), PurePosixPath(uri).parent) + match[3]


def _content(target: str) -> str:
    text = (ROOT / target).read_text()
    if target.endswith(".md"):
        return text
    if target.endswith(".ipynb"):
        return f"# {target}\n\n" + "\n\n".join(_cell(cell) for cell in json.loads(text)["cells"])
    return f"# {target}\n\n````{_LANGUAGES.get(PurePosixPath(target).suffix, 'text')}\n{text}\n````\n"


def _cell(cell: dict[str, Any]) -> str:
    text = "".join(cell["source"])
    if cell["cell_type"] == "code":
        return f"```python\n{text}\n```"
    return re.sub("^# ", "## ", text, flags=re.MULTILINE)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Name the search for screen readers, and let the keyboard reach code that scrolls."""
    search = 'data-md-component="search" role='
    output = output.replace(f'{search}"dialog"', f'{search}"dialog" aria-label="Search"')
    return output.replace("<pre><span></span><code>", '<pre tabindex="0"><span></span><code>')


def on_post_build(config: Any) -> None:
    """Write the index of the search as a script, too: pages that are opened as files can read no other."""
    folder = Path(config.site_dir) / "search"
    (folder / "search_index.js").write_text(f"var __index = {(folder / 'search_index.json').read_text()}")
