"""Checks a finished site: each link of a page leads to a file of the site, and
to an anchor of that file; no page loads a file from another host.

usage: check_site.py FOLDER
"""

import html.parser
import pathlib
import re
import sys
import urllib.parse

# Attributes with a file that a browser loads by itself.
LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"),
          ("source", "src"), ("object", "data")}
FOREIGN = re.compile(r"(https?:)?//")
CSS_URL = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


class Page(html.parser.HTMLParser):
    """The anchors and links of a page."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.loaded = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        for name, value in attributes:
            if value is None or given.get("rel") in ("canonical", "edit"):
                continue
            if (tag, name) in LOADED:
                self.loaded.add(value)
            elif name == "href":
                self.links.add(value)


def problems(folder):
    """Returns (number of links, one line for each problem)."""
    pages = {path: Page(path.read_text(errors="replace"))
             for path in sorted(folder.rglob("*.html"))}
    count, found = 0, []
    for path, page in pages.items():
        name = path.relative_to(folder)
        for url in sorted(page.loaded):
            if FOREIGN.match(url):
                found.append(f"{name}: loads {url} from another host")
        for url in sorted(page.links | page.loaded):
            scheme, _, file, _, anchor = urllib.parse.urlsplit(url)
            if scheme or FOREIGN.match(url):
                continue
            count += 1
            # 404.html is shown at any address, so its links begin with "/".
            base = folder if file.startswith("/") else path.parent
            target = path if not file else pathlib.Path(
                base, urllib.parse.unquote(file).lstrip("/")).resolve()
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                found.append(f"{name}: {url} is not there")
            elif (anchor and target in pages and urllib.parse.unquote(anchor)
                  not in pages[target].anchors | {"top", "__top"}):
                found.append(f"{name}: {url} has no such anchor")
    for path in sorted(folder.rglob("*.css")):
        for one, other in CSS_URL.findall(path.read_text(errors="replace")):
            if FOREIGN.match(one or other):
                found.append(f"{path.relative_to(folder)}: loads {one or other} "
                             "from another host")
    if count == 0:
        found.append(f"expected pages with links in {folder}, but got none")
    return count, found


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__.strip())
    folder = pathlib.Path(sys.argv[1]).resolve()
    count, found = problems(folder)
    print(f"{count} links of {len(list(folder.rglob('*.html')))} pages, "
          f"{len(found)} problems")
    if found:
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()
