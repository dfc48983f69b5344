"""Checks a book that mdBook has built: every page is in the contents, and every link leads to something that is there."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.names = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.names.update(found[name] for name in ("id", "name") if found.get(name))
        self.links += [found[name] for name in ("href", "src") if found.get(name)]


def main(book, docs):
    pages = {path: Page(path.read_text()) for path in sorted(book.rglob("*.html"))}
    wrong, count = [], 0
    for path, page in pages.items():
        # All of the book on one page, for printers: what it links to is checked where it stands. toc.html is a frame.
        if path.name in ("print.html", "404.html", "toc.html"):
            continue
        for link in page.links:
            at = urlsplit(link)
            if at.scheme or at.netloc:
                continue
            count += 1
            to = (path.parent / unquote(at.path)).resolve() if at.path else path
            if not to.is_relative_to(book) or not to.is_file():
                wrong.append(f"{path.relative_to(book)}: {link} is not there")
            elif at.fragment and to in pages and unquote(at.fragment) not in pages[to].names:
                wrong.append(f"{path.relative_to(book)}: {link}: no such place on the page")
    for source in sorted(docs.rglob("*.md")):
        page = source.relative_to(docs).with_suffix(".html")
        if source.name != "SUMMARY.md" and not (book / page).is_file():
            wrong.append(f"{source} is not in docs/SUMMARY.md")
    print("\n".join(wrong) if wrong else f"{len(pages)} pages, {count} links, each leads somewhere: {book}/index.html")
    return 1 if wrong else 0


sys.exit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2])))
