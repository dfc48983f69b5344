"""Tells whether the plots of pages are those that were looked at, and whether everybody can read them."""

import hashlib
import re
import sys
from pathlib import Path

SERIES = 6


def wrong_with(svg):
    """What keeps someone from reading a plot."""
    if 'aria-hidden="true"' in svg[: svg.index(">")]:
        return
    if 'role="img"' not in svg or not re.search(r'aria-label="[^"]|<title', svg):
        yield "nothing for screen readers"
    lines = re.findall(r"<polyline[^>]*>", svg)
    if len(lines) > SERIES:
        yield f"{len(lines)} series"
    looks = [re.sub(r' points="[^"]*"', "", line) for line in lines]
    if len(set(looks)) < len(looks):
        yield "two lines that look alike"


def main(folder, sums, bless):
    found, wrong = {}, []
    for page in sorted(folder.glob("*.html")):
        text = page.read_text()
        # What is reached by keyboard says what it is.
        unnamed = [tag for tag in re.findall(r"<[^>]*tabindex[^>]*>", text) if "aria-label=" not in tag]
        wrong += [f"{page.stem}: nothing for screen readers: {tag}" for tag in unnamed]
        for n, svg in enumerate(re.findall(r"<svg.*?</svg>", text, re.S)):
            name = f"{page.stem}:{n}"
            found[name] = hashlib.sha256(svg.encode()).hexdigest()
            wrong += [f"{name}: {what}" for what in wrong_with(svg)]
    if bless:
        sums.write_text("".join(f"{value}  {name}\n" for name, value in found.items()))
    kept = dict(reversed(line.split("  ")) for line in sums.read_text().splitlines()) if sums.exists() else {}
    for name in sorted(kept.keys() | found.keys()):
        if kept.get(name) != found.get(name):
            wrong.append(f"{name}: " + ("is new" if name not in kept else "is gone" if name not in found else "has changed"))
    print("\n".join(wrong) if wrong else f"{len(found)} plots, all as they were looked at")
    return 1 if wrong else 0


sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "true"))
