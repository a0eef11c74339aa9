"""README stays short, links lead somewhere, and papers are cited by name and number."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
PAPER_FILES = re.compile(r"\b(costa|star-adore|ltre|ance-iclr|ance-arxiv-v1)\.txt\b")


def test_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert len(text.split()) <= 1100


def anchors(page: Path) -> set[str]:
    """The anchors of `page`'s headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_pages_and_headings(tracked: list[Path]) -> None:
    pages = [file for file in tracked if file.suffix == ".md"]
    assert ROOT / "README.md" in pages
    for page in pages:
        for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
            if "://" not in target:
                linked = page.parent / target if target else page
                assert linked.exists(), f"{page.name}: {target}"
                assert not anchor or anchor in anchors(linked), f"{page.name}: {target}#{anchor}"


@pytest.mark.skipif(not (ROOT / "tasks" / "retrieve").is_dir(), reason="design.md describes the graph with stage retrieve")
def test_paths_that_pages_name_exist() -> None:
    """Modules named in design.md and CONTRIBUTING.md; the tables of rooms are checked too."""
    for page in (ROOT / "docs" / "design.md", ROOT / "docs" / "CONTRIBUTING.md"):
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"`((?:flows|tasks|tests|docs)/[\w/.-]+\.\w+)`", text):
            assert (ROOT / name).exists(), f"{page.name}: {name}"
    tables = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").split("## Rooms")[1].split("## Two walks")[0]
    for head, folder in (("`flows/`", "flows"), ("`tasks/`", "tasks"), ("`tasks/core/`", "tasks/core")):
        rows = tables.split(f"| {head} | |")[1].split("\n\n")[0]
        named = set(re.findall(r"`(\w+)/`", rows))
        rooms = {path.parent.name for path in (ROOT / folder).glob("*/__init__.py")}
        assert named == rooms, f"design.md: table of {folder}/ differs in {sorted(named ^ rooms)}"


def test_files_of_the_walks_have_the_names_that_their_steps_tell() -> None:
    walks = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").split("## Two walks")[1].split("\n## ")[0]
    steps = re.findall(r"^\d+\. `([\w/]+\.py)`: (.*)$", walks, flags=re.MULTILINE)
    assert len(steps) >= 13
    for file, text in steps:
        code = (ROOT / file).read_text(encoding="utf-8")
        names = re.findall(r"`(\w+)`", re.sub(r"(`\w+` )?\(`.*?\)", "", text))  # names of another file are followed by it, in parentheses
        missing = [name for name in names if not re.search(rf"\b{name}\b", code)]
        assert not missing, f"design.md: {file} has no {', '.join(missing)}"


def test_papers_are_cited_by_name_and_number(tracked: list[Path]) -> None:
    sources = [file for file in tracked if file.suffix in (".py", ".md", ".yaml") and file != Path(__file__)]
    offenders = [file.name for file in sources if PAPER_FILES.search(file.read_text(encoding="utf-8"))]
    assert not offenders, f"cite the paper by name and arXiv number, not by a file: {offenders}"
