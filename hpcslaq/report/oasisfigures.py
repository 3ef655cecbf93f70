"""Pictures of OASiS' plans: prices over slots and hosts, planned against actual ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpcslaq.report.figures import new_figure, palette, short_name, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plan_figures(oasis: Mapping[str, Any]) -> dict[str, Figure]:
    """Caption -> figure, for a report's `oasis`."""
    figures = {}
    if oasis["prices"]:
        caption = (
            "Price of a rank over slots (rounds) and hosts, as reserved when each slot began: "
            "dark where nobody reserved, bright where a host is full"
        )
        figures[caption] = price_figure(oasis)
    if any(any(row) for row in oasis["planned"].values()):
        figures["Ranks per slot by job: reserved (above), held on average (below)"] = ranks_figure(
            oasis
        )
    return figures


def price_figure(oasis: Mapping[str, Any]) -> Figure:
    """A heat map of the prices, hosts upwards, slots to the right."""
    rows = [list(row) for row in zip(*oasis["prices"], strict=True)]
    figure, axes = new_figure(min(1.4 + 0.22 * len(rows), 6.0))
    image = axes.imshow(
        rows,
        aspect="auto",
        interpolation="nearest",
        origin="lower",
        cmap="viridis",
        vmin=oasis["price_low"],
        vmax=max(oasis["price_high"], oasis["price_low"] * 1.001),
    )
    axes.grid(visible=False)
    axes.set_yticks(range(len(rows)), [short_name(host) for host in oasis["hosts"]], fontsize=7)
    axes.xaxis.set_major_locator(whole_numbers())
    axes.set_xlabel(f"slot of {oasis['slot_s']:g} s")
    bar = figure.colorbar(image, ax=axes, pad=0.015, fraction=0.03, aspect=15)
    bar.set_label("price")
    return figure


def ranks_figure(oasis: Mapping[str, Any]) -> Figure:
    """Stacked bars per slot: what was reserved above, what was held below."""
    figure, upper = new_figure(4.6)
    upper.remove()
    first, second = figure.subplots(2, 1, sharex=True, sharey=True)
    colours = palette([job["name"] for job in oasis["jobs"]])
    for axes, key, label in ((first, "planned", "reserved"), (second, "actual", "held")):
        _stack(axes, oasis["slots"], oasis[key], colours)
        axes.set_ylabel(f"ranks {label}")
        axes.grid(visible=True, color="#E4E4E4", linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    second.xaxis.set_major_locator(whole_numbers())
    second.set_xlabel(f"slot of {oasis['slot_s']:g} s")
    handles, labels = first.get_legend_handles_labels()
    if len(labels) <= 16:
        figure.legend(handles, labels, loc="outside right upper", fontsize=8, frameon=False)
    return figure


def _stack(
    axes: Axes, slots: list[int], ranks: Mapping[str, list[float]], colours: Mapping[str, Any]
) -> None:
    bottom = [0.0] * len(slots)
    for name, row in ranks.items():
        heights = [*row, *([0.0] * (len(slots) - len(row)))]
        axes.bar(slots, heights, 0.9, bottom, color=colours[name], label=short_name(name))
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
