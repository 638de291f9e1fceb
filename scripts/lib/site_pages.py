"""A hook of MkDocs for ./scripts/site: pages with a source outside of docs/, and
links that lead out of docs/.

Reads the folder DDP_SITE_WORK (ddprun.1, api/ and api.tag) and DDP_REPOSITORY_URL. A
link to a file that is no page leads to the file below DDP_REPOSITORY_URL, or becomes
text if that is not set. A code span that names a header or a name of the API
leads to its page of the reference.
"""

import html
import os
import pathlib
import posixpath
import re
import xml.etree.ElementTree

from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = pathlib.Path(os.environ["DDP_SITE_WORK"])
REPOSITORY = os.environ.get("DDP_REPOSITORY_URL", "").rstrip("/")
# The sections of README.md that are pages; all other text is the start page.
SECTIONS = {"A training program": "first_job.md"}
SOURCES = {"README.md": "index.md", "CHANGELOG.md": "CHANGELOG.md",
           "CONTRIBUTING.md": "CONTRIBUTING.md"}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"^(```.*?^```$)", re.M | re.S)
CODE = re.compile(r"<(a|pre|h\d)\b.*?</\1>|<code>([^<]+)</code>", re.S)


def readme_pages():
    """Returns {page: Markdown} of README.md."""
    parts = re.split(r"(?m)^(?=## )", (ROOT / "README.md").read_text())
    pages = {"index.md": ""}
    for part in parts:
        title = re.match(r"## (.*)\n", part)
        page = SECTIONS.get(title[1]) if title else None
        if page:
            pages[page] = part[1:]
        else:
            pages["index.md"] += part
    if missing := set(SECTIONS.values()) - set(pages):
        raise SystemExit(f"README.md: expected the sections of {sorted(missing)}")
    return pages


def manual_page(roff):
    """Returns ddprun(1), as launcher/options/help_text.cpp writes it, in
    Markdown."""
    def plain(text):
        text = re.sub(r"\\f[BIR]", "", text)
        return html.escape(text.replace("\\-", "-").replace("\\&", "")
                           .replace("\\e", "\\"), quote=False)

    out, term, is_code = ["# ddprun", ""], None, False
    for line in roff.splitlines():
        if line.startswith(".TH"):
            continue
        line = line.removeprefix(".B ")
        if is_code and line != ".fi":
            out.append(html.unescape(plain(line)))
        elif line.startswith((".SH ", ".SS ")):
            title = plain(line[4:])
            out += ["", ("## " if line[2] == "H" else "### ") + title.capitalize(), ""]
        elif line == ".nf":
            is_code = True
            out.append("```sh")
        elif line == ".fi":
            is_code = False
            out.append("```")
        elif line == ".TP":
            term = ""
        elif term == "":
            term = plain(line)
        elif term:
            out.append(f"<dl><dt><code>{term}</code></dt><dd>{plain(line)}</dd></dl>\n")
            term = None
        else:
            out.append(f"<p>{plain(line)}</p>")
    return "\n".join(out) + "\n"


def api_pages():
    """Returns {header or qualified name: page of Doxygen}."""
    pages = {}
    for compound in xml.etree.ElementTree.parse(WORK / "api.tag").getroot():
        kind, name = compound.get("kind"), compound.findtext("name")
        file = compound.findtext("filename")
        if kind == "file":
            path = compound.findtext("path").removeprefix(f"{ROOT}/")
            pages[path + name] = file
            continue
        if kind not in ("class", "struct", "namespace"):
            continue
        if kind != "namespace":
            pages[name] = file
        for member in compound.findall("member"):
            anchor = member.findtext("anchorfile") + "#" + member.findtext("anchor")
            pages.setdefault(name + "::" + member.findtext("name"), anchor)
    for header in [*ROOT.glob("ddp/*.h"), *ROOT.glob("dp/*.h")]:
        included = re.findall(r'^#include "(.*)"', header.read_text(), re.M)
        if len(included) == 1 and included[0] in pages:
            pages[str(header.relative_to(ROOT))] = pages[included[0]]
    return pages


API = api_pages()


def on_files(files, config):
    for page, text in readme_pages().items():
        files.append(File.generated(config, page, content=text))
    for source, page in SOURCES.items():
        if source != "README.md":
            files.append(File.generated(config, page,
                                        content=(ROOT / source).read_text()))
    files.append(File.generated(
        config, "ddprun.md",
        content=manual_page((WORK / "ddprun.1").read_text())))
    files.append(File.generated(config, "assets/site.css", content=CSS))
    for path in sorted((WORK / "api").rglob("*")):
        if path.is_file():
            files.append(File(str(path.relative_to(WORK)), str(WORK),
                              config.site_dir, use_directory_urls=False))
    return files


def repository_path(page, target):
    """Returns the path in the repository of a page's relative link."""
    source = next((s for s, p in SOURCES.items() if p == page), None)
    is_of_root = source or page in SECTIONS.values()
    folder = "" if is_of_root else "docs"
    return posixpath.normpath(posixpath.join(folder, target))


def new_target(page, target):
    """Returns the target of a link in the site; None for text."""
    if re.match(r"[a-z]+:", target):
        return target
    if target.startswith("#") and page not in README_PAGES:
        return target
    file, _, anchor = target.partition("#")
    path = repository_path(page, file) if file else "README.md"
    anchor = "#" + anchor if anchor else ""
    if path == "README.md":
        return page_of_anchor(anchor) + anchor
    if path in SOURCES:
        return SOURCES[path] + anchor
    if path.startswith("docs/") and (ROOT / path).is_file():
        return path[len("docs/"):] + anchor
    if path in API:
        return "api/" + API[path]
    if not (ROOT / path).exists():
        return target  # MkDocs reports it
    return f"{REPOSITORY}/blob/HEAD/{path}" if REPOSITORY else None


README_PAGES = {"index.md", *SECTIONS.values()}


def title_of(path):
    """Returns the first heading of a Markdown file of the repository."""
    return re.search(r"^# (.*)", (ROOT / path).read_text(), re.M)[1]


def page_of_anchor(anchor):
    for title, page in SECTIONS.items():
        if anchor == "#" + title.lower().replace(" ", "-"):
            return page
    return "index.md"


def on_page_markdown(markdown, page, config, files):
    name = page.file.src_uri

    def changed(link):
        is_picture, text, target = link.groups()
        if text == target and text.endswith(".md"):
            text = title_of(repository_path(name, target))
        target = new_target(name, target)
        if target is None:
            return text if "`" in text else f"`{text}`"
        return f"{is_picture}[{text}]({target})"

    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(changed, part)
                   for part in parts)


def on_page_content(content, page, config, files):
    def linked(code):
        name = html.unescape(code[2] or "").removesuffix("()")
        if name not in API:
            return code[0]
        target = get_relative_url("api/" + API[name], page.url)
        return f'<a href="{target}">{code[0]}</a>'

    return CODE.sub(linked, content)


# Wide tables of text break their lines instead of leaving the page.
CSS = """\
.md-grid { max-width: 76rem; }
.md-typeset table:not([class]) { font-size: .68rem; }
.md-typeset table:not([class]) td code { overflow-wrap: anywhere; }
.md-typeset table:not([class]) td:first-child { min-width: 9rem; }
.md-typeset dl { margin: .4em 0; }
.md-typeset dd { margin: .2em 0 .4em 1.5em; }
.md-typeset h1 { font-weight: 500; }
"""
