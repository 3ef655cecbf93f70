"""The page: complete, closed, escaped, and there without matplotlib too."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from hpcslaq.record.rundir import RunDirectory
from hpcslaq.report import figures
from hpcslaq.report.build import RunReader
from hpcslaq.report.html import render_page, write_html

_VOID = {"meta", "img"}


class Page(HTMLParser):
    """Checks that tags are closed in order; collects text, sources and table cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.seen: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        for key, value in attrs:
            if tag == "img" and key == "src":
                self.images.append(value or "")
            elif key in ("href", "src"):
                self.links.append(value or "")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def written(run: RunDirectory) -> str:
    reader = RunReader(run)
    reader.poll()
    path = write_html(reader)
    assert path == run.report_html
    return path.read_text(encoding="utf-8")


def test_the_page_is_well_formed_and_needs_nothing_from_elsewhere(ended_run: RunDirectory) -> None:
    text = written(ended_run)
    page = Page(text)
    assert page.links == [] and "script" not in page.seen and "link" not in page.seen
    assert all(source.startswith("data:image/png;base64,") for source in page.images)
    assert "default-src 'none'" in text and not re.search(r"https?://", text)


def test_whatever_a_job_says_is_escaped(ended_run: RunDirectory) -> None:
    text = written(ended_run)
    assert "<script>" not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "loss is &lt;nan&gt;" in text


def test_the_page_holds_results_environment_and_how_to_reproduce(ended_run: RunDirectory) -> None:
    words = " ".join(Page(written(ended_run)).words)
    for part in (
        "1 of 2 jobs done",
        "Some MPI 1.0",
        "hpcslaq run jobs/two.toml --policy slaq --ranks 3",
        "[[job]]",
        "26.32 %",
        "ab" * 8 + "…",
    ):
        assert part in words
    assert f'title="{"cd" * 32}"' in written(ended_run)


def test_figures_are_in_the_page_where_matplotlib_is(ended_run: RunDirectory) -> None:
    pytest.importorskip("matplotlib")
    assert len(Page(written(ended_run)).images) == 4


def test_without_matplotlib_there_are_tables_and_a_hint(
    ended_run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "has_matplotlib", lambda: False)
    text = written(ended_run)
    page = Page(text)
    assert page.images == [] and page.seen.count("table") == 3
    assert "hpcslaq[report]" in text


def test_a_run_that_is_still_on_has_a_page(open_run: RunDirectory) -> None:
    assert "not submitted" in written(open_run)


def test_a_failed_write_leaves_the_former_page(
    ended_run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended_run.report_html.write_text("former")

    def no_space(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hpcslaq.record.files.publish", no_space)
    reader = RunReader(ended_run)
    reader.poll()
    with pytest.raises(OSError, match="No space"):
        write_html(reader)
    assert ended_run.report_html.read_text() == "former"


def test_a_page_without_images_or_plan_is_still_a_page(ended_run: RunDirectory) -> None:
    reader = RunReader(ended_run)
    reader.poll()
    page = Page(render_page(reader.report(), {}, ""))
    assert "Nothing has happened yet that could be drawn." in page.words
