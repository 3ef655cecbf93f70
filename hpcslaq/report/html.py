"""`RUN/report.html`: one page that needs nothing else, not even a network.

Tables always; figures where matplotlib is installed. Every text of the run is escaped, and
the page forbids itself scripts and connections.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from hpcslaq.record.files import write_atomic
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.report import figures
from hpcslaq.report.build import RunReader
from hpcslaq.report.oasisfigures import plan_figures
from hpcslaq.report.text import (
    TextTable,
    environment,
    facts,
    headline,
    job_table,
    plan_table,
    problems,
    rank_time_table,
    result_table,
)

#: Longest `run.toml` that is repeated in the page.
_MAX_PLAN_BYTES = 2**18
#: Columns whose text is a long hexadecimal number: shown short, in full when pointed at.
_DIGESTS = ("loss digest", "model digest")
_NO_FIGURES = (
    'There are no figures: matplotlib is not installed (<code>pip install "hpcslaq[report]"</code>,'
    " then <code>hpcslaq report RUN</code>)."
)
_STATE_CLASSES = {"done": "good", "failed": "bad", "cancelled": "bad", "rejected": "bad"}

_STYLE = """
:root { --line: #ddd; --soft: #666; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
  max-width: 76rem; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p.lead { margin-top: 0; color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .7rem .22rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; border-bottom: 2px solid var(--line); }
td.n, th.n { text-align: right; }
td.good { color: #00694c; } td.bad { color: #a33b00; font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 1.2rem 0; } figure img { max-width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: .86rem; }
pre { background: #f6f6f6; padding: .7rem .9rem; overflow-x: auto; font-size: .8rem; }
summary { cursor: pointer; color: var(--soft); }
"""


def write_html(reader: RunReader) -> Path:
    """Write the page of what `reader` has read, in one piece; its path.

    Raises OSError where it cannot be written (the former page stays).
    """
    report = reader.report()
    images: dict[str, bytes] | None = None
    if figures.has_matplotlib():
        images = figures.draw_all(reader.summary, reader.history, report["run"]["rank_time_s"])
        if report["oasis"] is not None:
            images |= {
                caption: figures.to_png(figure)
                for caption, figure in plan_figures(report["oasis"]).items()
            }
    page = render_page(report, images, _plan_text(reader.run))
    write_atomic(reader.run.report_html, page.encode())
    return reader.run.report_html


def render_page(
    report: Mapping[str, Any], images: Mapping[str, bytes] | None, plan_text: str
) -> str:
    """The whole page. `images` : caption -> PNG, None: they cannot be drawn here."""
    name = escape(report["run"]["name"])
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{name} – hpcslaq</title><style>{_STYLE}</style></head><body>",
        f"<h1>{name}</h1>",
        f'<p class="lead">{escape(headline(report))}</p>',
        _list(facts(report)),
        *_problems(report),
        "<h2>Jobs</h2>",
        _table(job_table(report, all_metrics=True)),
        *_plans(report),
        "<h2>Results</h2>",
        "<p>SHA-256 of the sequence of losses and of the parameters; point at one to see all of "
        "it.</p>",
        _table(result_table(report)),
        "<h2>Figures</h2>",
        *_images(images),
        "<h2>Rank-time</h2>",
        "<p>Rank-seconds of all workers by what they were spent on. Waiting for the sum is "
        "part of training: the slowest member still computes. Between reports lie orders on their "
        "way and, while the run is on, the groups that have not reported yet.</p>",
        _table(rank_time_table(report)),
        "<h2>Environment</h2>",
        _list(environment(report)),
        *_reproduce(report, plan_text),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _problems(report: Mapping[str, Any]) -> Iterable[str]:
    found = problems(report)
    if not found:
        return
    details = {job["name"]: job["details"] for job in report["jobs"]}
    yield "<h2>Problems</h2>"
    for name, reason in found:
        yield f"<p><strong>{escape(name)}</strong>: {escape(reason or 'no reason known')}</p>"
        if details[name]:
            trace = escape(details[name])
            yield f"<details><summary>traceback</summary><pre>{trace}</pre></details>"


def _plans(report: Mapping[str, Any]) -> Iterable[str]:
    if report["oasis"] is None:
        return
    yield "<h2>Plans and utility</h2>"
    yield (
        "<p>Slots are rounds, counted from the start of the run. The bound is what no schedule "
        "of the jobs that were offered could have surpassed by the end of the run, by weak "
        "duality, with the step times that were estimated then. 2 alpha is what the theorem "
        "promises for the paper's price bounds; for those in use here only the certified ratio "
        "holds.</p>"
    )
    yield _table(plan_table(report))


def _images(images: Mapping[str, bytes] | None) -> Iterable[str]:
    if images is None:
        yield f"<p>{_NO_FIGURES}</p>"
        return
    if not images:
        yield "<p>Nothing has happened yet that could be drawn.</p>"
    for caption, png in images.items():
        data, text = base64.b64encode(png).decode("ascii"), escape(caption)
        yield (
            f'<figure><img alt="{text}" src="data:image/png;base64,{data}">'
            f"<figcaption>{text}</figcaption></figure>"
        )


def _reproduce(report: Mapping[str, Any], plan_text: str) -> Iterable[str]:
    run = report["run"]
    ranks = run["ranks"] or "N"
    line = f"hpcslaq run {run['job_file'] or 'JOBFILE'} --policy {run['policy']} --ranks {ranks}"
    yield "<h2>How to reproduce</h2>"
    yield f"<pre>{escape(line)}</pre>"
    yield (
        "<p>The losses and models of the jobs do not depend on the number of ranks, on the "
        "policy or on what else was running: equal digests (SHA-256 of the losses and of the "
        "parameters) are expected from the same job file, data, processor type and library "
        "versions.</p>"
    )
    if any(job["staleness"] for job in report["jobs"]):
        yield (
            "<p>Not so for jobs with staleness: the order in which their parameter servers take "
            "the workers' pushes is another in each run, and so are the bits.</p>"
        )
    if plan_text:
        yield (
            "<details><summary>run.toml: everything that was asked for, resolved</summary>"
            f"<pre>{escape(plan_text)}</pre></details>"
        )


def _list(pairs: Iterable[tuple[str, str]]) -> str:
    rows = [f"<dt>{escape(label)}</dt><dd>{escape(value)}</dd>" for label, value in pairs]
    return "<dl>" + "\n".join(rows) + "</dl>"


def _table(table: TextTable) -> str:
    pairs = zip(table.columns, table.is_number, strict=True)
    head = "".join(_cell("th", text, "n" * is_number) for text, is_number in pairs)
    lines = ['<div class="wide"><table>', f"<tr>{head}</tr>"]
    lines += [f"<tr>{_row(table, row)}</tr>" for row in table.rows]
    return "\n".join([*lines, "</table></div>"])


def _row(table: TextTable, row: Sequence[str]) -> str:
    cells = []
    for column, is_number, text in zip(table.columns, table.is_number, row, strict=True):
        style = "n" * is_number
        if column == "state":
            style = _STATE_CLASSES.get(text, "")
        if column in _DIGESTS and len(text) > 16:
            cells.append(f'<td title="{escape(text)}"><code>{escape(text[:16])}…</code></td>')
        else:
            cells.append(_cell("td", text, style))
    return "".join(cells)


def _cell(tag: str, text: str, style: str) -> str:
    name = f' class="{style}"' if style else ""
    return f"<{tag}{name}>{escape(text)}</{tag}>"


def _plan_text(run: RunDirectory) -> str:
    """The run's `run.toml`; empty where it is too long to repeat."""
    data = run.run_toml.read_bytes()
    return data.decode(errors="replace") if len(data) <= _MAX_PLAN_BYTES else ""
