"""Pictures of curves and metrics with matplotlib."""
from __future__ import annotations

import textwrap
from typing import Any

import pandas
from matplotlib import pyplot
from matplotlib.axes import Axes

from scalelab.errors import invalid

# The columns of a curve before this one are axes of the study.
_FIRST_COLUMN_OF_POINTS = "ranks"
_NOTE_COLUMNS, _MOST_NOTE_LINES = 90, 8
_NOTES_BELOW = 40  # points from the axis to the notes, below the label of the axis


def curve(frame: pandas.DataFrame, what: str, title: str, ax: Axes | None) -> Axes:
    if frame.empty or what not in frame or what + "_low" not in frame:
        raise invalid(f"the curve has no estimate '{what}'; it has speedup, efficiency, throughput and others with a column NAME_low")
    # The layout leaves space for the notes.
    ax = ax if ax is not None else pyplot.subplots(constrained_layout=True)[1]
    axes = list(frame.columns[: list(frame.columns).index(_FIRST_COLUMN_OF_POINTS)])
    # The points of a series have equal values of all axes except ranks, and ran on equal hardware and software.
    for _, series in frame.groupby(frame[[*axes, "fingerprint"]].astype(str).agg(" ".join, axis=1), sort=False):
        series = series.dropna(subset=[what])
        if series.empty:
            continue
        below, above = series[what] - series[what + "_low"], series[what + "_high"] - series[what]
        label = ", ".join(str(series[axis].iloc[0]) for axis in _varying(frame, axes)) or None
        ax.errorbar(series["ranks"], series[what], yerr=[below.fillna(0), above.fillna(0)], marker="o", capsize=3, label=label)
    ranks = sorted(set(frame["ranks"]))
    if what == "speedup":
        bases = sorted({base for base in frame["baseline_ranks"] if base > 0})
        for base in bases:
            label = "ideal" if len(bases) == 1 else f"ideal, baseline ranks {base}"
            ax.plot(ranks, [rank / base for rank in ranks], linestyle="--", color="grey", label=label)
    elif what == "efficiency":
        ax.plot(ranks, [1] * len(ranks), linestyle="--", color="grey", label="ideal")
    ax.set_xscale("log", base=2)
    ax.set_xticks(ranks, [str(rank) for rank in ranks])
    ax.set_xlabel("ranks")
    ax.set_ylabel("samples/s" if what == "throughput" else what.replace("_", " "))
    ax.set_title(title)
    if ax.get_legend_handles_labels()[0]:
        ax.legend()
    notes = [note for note in dict.fromkeys(frame["series_notes"]) if note]
    if notes:
        lines = [line for note in notes for line in textwrap.wrap("note: " + note, _NOTE_COLUMNS)]
        if len(lines) > _MOST_NOTE_LINES:
            lines[_MOST_NOTE_LINES - 1 :] = ["more notes are in the column series_notes"]
        ax.annotate("\n".join(lines), (0, 0), (0, -_NOTES_BELOW), xycoords="axes fraction", textcoords="offset points",
                    verticalalignment="top", fontsize="small", color="dimgrey")
    return ax


def metric(points: pandas.DataFrame, runs: pandas.DataFrame, key: str, ax: Axes | None) -> Axes:
    if points.empty:
        raise invalid(f"no run has points of the metric '{key}'")
    ax = ax if ax is not None else pyplot.subplots()[1]
    names = list(runs.columns[1 : list(runs.columns).index("position")])  # axes, ranks, repeat
    for run, of_run in points.groupby("run", sort=False):
        row: Any = runs[runs["run"] == run].iloc[0]
        label = ", ".join(f"{name} {row[name]}" for name in _varying(runs, names)) or run
        # The server selects points of each rank by itself, so that ranks may have different steps.
        of_ranks = of_run.groupby(["step", "rank"])["value"].mean().unstack("rank")
        of_ranks.interpolate(method="index", limit_area="inside").mean(axis=1).plot(ax=ax, label=label)
    ax.set_xlabel("step")
    ax.set_ylabel(key)
    ax.legend()
    return ax


def _varying(frame: pandas.DataFrame, columns: list[str]) -> list[str]:
    return [column for column in columns if frame[column].astype(str).nunique() > 1]
