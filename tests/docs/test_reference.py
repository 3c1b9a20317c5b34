"""The docs say what the code says, and every error is explained."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import yaml
from prometheus_client import Metric
from tools.docs.api import API_PAGES
from tools.docs.assembling import COMPLETED, assemble, copy_changed, generated_pages
from tools.docs.errors import all_errors, errors_page, sections
from tools.docs.links import broken_links

from tests.test_public_names import NAMES
from walflow.cli import walflow
from walflow.config import Settings
from walflow.config.keys import field_at, keys_of
from walflow.model import Phase
from walflow.observe.metrics import Metrics
from walflow.pipeline.state.phases import MOVES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ERRORS = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")

_FILE_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return generated_pages()


def test_every_error_has_a_section_that_says_what_to_do() -> None:
    told = sections(ERRORS)
    assert sorted(told) == sorted(all_errors()), "write what to do in docs/reference/errors.md"
    assert [name for name, text in told.items() if len(text.split()) < 5] == []


def test_errors_stand_under_their_kind() -> None:
    kinds: dict[str, set[str]] = {}
    for part in ERRORS.split("\n## ")[2:]:
        heading = part.partition("\n")[0]
        kinds[heading] = {all_errors()[name].kind.value for name in sections("\n## " + part)}
    assert all(len(kind) == 1 for kind in kinds.values()), kinds


def test_facts_are_put_under_each_error() -> None:
    completed = sections(errors_page(ERRORS))
    for name, error in all_errors().items():
        text = completed[name]
        assert f"Exit code `{error.exit_code}`" in text
        assert error.default_hint in text
        assert ("not tried again" not in text) is error.retry
        assert sections(ERRORS)[name] in text


def test_all_commands_and_options_are_there(pages: dict[str, str]) -> None:
    page = pages["reference/command-line.md"]
    for name, command in walflow.commands.items():
        assert f"## `walflow {name}`" in page
        for parameter in command.params:
            if not getattr(parameter, "hidden", False):
                assert max(parameter.opts, key=len) in page.lower() or parameter.name in page


def test_all_metrics_phases_and_moves_are_there(pages: dict[str, str]) -> None:
    for family in Metrics().registry.collect():
        assert f"`{family.name}" in pages["reference/metrics.md"]
        assert family.documentation in pages["reference/metrics.md"]
    rows = {
        row[0]: row
        for line in pages["reference/phases.md"].splitlines()
        if len(row := [cell.strip(" `") for cell in line.strip("|").split("|")]) == 4
    }
    for phase in Phase:
        _, told, _, moves = rows[phase.value]
        assert told, f"{phase} has no docstring"
        assert set(re.findall(r"\w+", moves)) == {after.value for after in MOVES[phase]}
    drawn = (DOCS / "assets" / "phases.svg").read_text(encoding="utf-8")
    assert all(f">{phase.value}<" in drawn for phase in Phase)


def test_metrics_and_settings_that_pages_name_exist() -> None:
    known = {name for family in Metrics().registry.collect() for name in _scraped(family)}
    first = "|".join(key for key, model in keys_of(Settings).items() if model is not None)
    # Spark's own settings, and modules, begin like ours.
    setting = re.compile(rf"`(?!spark\.sql)((?:{first})(?:\.(?!py`)[a-z_]+)+)[`:]")
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md"]:
        if page.parent.name == "decisions":
            continue  # they tell how it was
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"\betl_[a-z_]+\b", text)) <= known, page
        unknown = [name for name in setting.findall(text) if field_at(name.split(".")) is None]
        assert unknown == [], page


def _scraped(family: Metric) -> list[str]:
    if family.type == "counter":
        return [f"{family.name}_total"]
    more = ("_bucket", "_count", "_sum") if family.type == "histogram" else ()
    return [family.name, *(family.name + end for end in more)]


def test_values_that_do_not_fit_are_kept(pages: dict[str, str]) -> None:
    rows = pages["reference/types.md"].partition("Values that do not fit")[2].splitlines()
    samples = [row for row in rows if row.startswith("| `")]
    assert len(samples) > 8
    assert [row for row in samples if not row.endswith("| yes |")] == []


def test_every_public_module_is_in_the_api() -> None:
    documented = {module for _, _, modules in API_PAGES.values() for module in modules}
    # `walflow` gives the names of these, and errors have a page of their own.
    assert documented == set(NAMES) - {"walflow", "walflow.errors"}


def test_every_page_is_in_the_navigation(pages: dict[str, str]) -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = set(_paths(site["nav"]))
    written = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert named == written | set(pages)


def _paths(entry: object) -> list[str]:
    match entry:
        case str():
            return [entry]
        case dict():
            return [path for below in entry.values() for path in _paths(below)]
        case list():
            return [path for below in entry for path in _paths(below)]
    raise AssertionError(entry)


def test_links_of_files_outside_the_site_lead_somewhere() -> None:
    missing = [
        f"{file.name}: {link}"
        for file in (ROOT / "README.md", ROOT / "CONTRIBUTING.md")
        for link in _FILE_LINK.findall(file.read_text(encoding="utf-8"))
        if not (ROOT / link).exists()
    ]
    assert missing == []


def test_pages_are_assembled_and_follow_what_is_written(tmp_path: Path) -> None:
    docs, target = tmp_path / "docs", tmp_path / "assembled"
    (docs / "reference").mkdir(parents=True)
    shutil.copyfile(DOCS / "reference" / "errors.md", docs / "reference" / "errors.md")
    (docs / "index.md").write_text("before")
    assemble(docs, target)
    assert "Exit code `21`" in (target / "reference" / "errors.md").read_text()
    assert all((target / path).is_file() for path in [*generated_pages(), *COMPLETED])
    (docs / "index.md").write_text("after")
    later = (target / "index.md").stat().st_mtime + 5
    (docs / "new.md").write_text("new")
    os.utime(docs / "index.md", (later, later))
    copy_changed(docs, target)
    assert [(target / name).read_text() for name in ("index.md", "new.md")] == ["after", "new"]


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text("<h1 id=one>1</h1><img src='../gone.svg'>")
    (tmp_path / "index.html").write_text(
        "<a href='a/'></a><a href='a/#one'></a><a href='a/#two'></a><a href='b/'></a>"
        "<a href='#here'></a><a href='https://example.org/x'></a>"
    )
    assert broken_links(tmp_path) == [
        "a/index.html: ../gone.svg",
        "index.html: a/#two",
        "index.html: b/",
        "index.html: #here",
    ]
