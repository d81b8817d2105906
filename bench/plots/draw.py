"""Draws the sweep, the ablations and the roofline as SVG from the JSON under bench/results.

    draw [--results DIR] [--out DIR]

Results are what `lily bench --json`, `lily bench --ablate --json` and `lily profile --json` print. Those of one device and model belong to one
picture; of several of a kind the newest counts, but a peer that only an older sweep has is drawn from that one.
"""

import argparse
import json
import re
import textwrap
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

# Grays and hues that can be read on a white and on a black page.
TEXT, GRID = "#7d7d7d", "#888888"
OURS, PEERS = "#2f81f7", ["#d9822b", "#2da36b", "#b65fcf"]
GAIN, LOSS = "#2f81f7", "#d9822b"
# Of the operations that a roofline shows.
SMALLEST_SHARE = 0.01

plt.rcParams.update({
    "svg.fonttype": "path",
    "svg.hashsalt": "lily",
    "font.size": 10,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "text.color": TEXT,
    "axes.edgecolor": TEXT,
    "axes.labelcolor": TEXT,
    "axes.titlecolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.labelcolor": TEXT,
})


def kind(result):
    """`sweep`, `ablation` or `profile`; None for anything else. The first results have no `kind`: they are sweeps."""
    if "kind" in result:
        return result["kind"] if result["kind"] in ("sweep", "ablation", "profile") else None
    rows = result.get("results")
    return "sweep" if rows and "context" in rows[0] else None


def load(directory):
    """Results by device and model, then kind, oldest first."""
    groups = defaultdict(lambda: defaultdict(list))
    for path in sorted(directory.rglob("*.json")):
        result = json.loads(path.read_text())
        if not isinstance(result, dict) or kind(result) is None:
            continue
        dated = re.match(r"\d{4}-\d\d-\d\d", path.name)
        result.setdefault("date", dated.group() if dated else "")
        groups[name(result)][kind(result)].append(result)
    for kinds in groups.values():
        for results in kinds.values():
            results.sort(key=lambda result: result["date"])
    return groups


def model_name(result):
    """Its name, and how many layers it has where those are not all."""
    model = result["model"]
    return f"{model['name']}, {model['layers']} layers" if "35b" in model["name"] and model["layers"] < 40 else model["name"]


def device_name(result):
    """A GPU's name, or the processor's."""
    device = result["device"]
    return result["machine"]["cpu"] if device.startswith("CPU") else device.split(",")[0]


def name(result):
    device = re.sub(r"\((r|tm)\)", "", device_name(result).lower())
    words = f"{device} {result['machine']['cpus']} cores" if result["device"].startswith("CPU") else device
    return re.sub(r"[^a-z0-9.]+", "-", f"{words} {model_name(result)}").strip("-")


def number(value, _=None):
    """12,500 as 12.5K."""
    if value >= 1e12:
        return f"{value / 1e12:.3g}T"
    if value >= 1e9:
        return f"{value / 1e9:.3g}G"
    if value >= 1e6:
        return f"{value / 1e6:.3g}M"
    return f"{value / 1e3:.3g}K" if value >= 1e3 else f"{value:.3g}"


def tokens(value, _=None):
    """4,096 as 4K."""
    return f"{value // 1024:g}K" if value >= 1024 and value % 1024 == 0 else f"{value:,g}"


def caption(figure, results, what):
    """What was measured where and when, under the picture."""
    newest = results[-1]
    machine = newest["machine"]
    dates = sorted({result["date"] for result in results if result["date"]})
    commits = list(dict.fromkeys(result["commit"][:10] for result in results if result.get("commit")))
    versions = sorted({result["version"] for result in results if result.get("version")})
    device = newest["device"]
    if device.startswith("CPU"):
        device = f"{machine['cpu']}, {device.removeprefix('CPU, ')}"
    lines = [
        f"{model_name(newest)} on {device}; {what}",
        ", ".join(filter(None, [
            f"{machine['os']} {machine['arch']}, {machine['cpus']} processors, {machine['memory_bytes'] / 1e9:.0f} GB",
            " and ".join(dates) if len(dates) < 3 else f"{dates[0]} to {dates[-1]}",
            f"Lily {', '.join(versions)}" + (f" at {', '.join(commits)}" if commits else ""),
        ])),
    ]
    warnings = [warning for result in results for warning in result.get("conditions", {}).get("warnings", [])]
    if warnings:
        lines.append("; ".join(dict.fromkeys(warnings)))
    lines = [part for line in lines for part in textwrap.wrap(line, 150)]
    figure.text(0.01, 0.01, "\n".join(lines), fontsize=7.5, va="bottom", ha="left")
    return 0.02 + 0.033 * len(lines)


def save(figure, path, bottom):
    figure.tight_layout(rect=(0, bottom, 1, 1))
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    print(path)


def curve(rows, value):
    points = [(row["context"], value(row)) for row in rows]
    return sorted(point for point in points if point[1])


def sweep(name, results, out):
    """Prefill and decode against context, ours and the peers'."""
    newest = max(results, key=lambda result: (result["date"], len(result["results"])))
    lines = [("Lily", OURS, newest["results"], lambda row, field: row.get(field))]
    used, seen = [newest], set()
    for result in reversed(results):
        peer = result.get("peer")
        if not peer or (peer["name"], peer.get("format")) in seen:
            continue
        seen.add((peer["name"], peer.get("format")))
        used.append(result)
        version = peer.get("version") or peer["name"]
        label = version if version.startswith(peer["name"]) else f"{peer['name']} {version}"
        label = f"{label}: {peer['format']}" if peer.get("format") else label
        color = PEERS[(len(seen) - 1) % len(PEERS)]
        lines.append((label, color, result["results"], lambda row, field: (row.get("peer") or {}).get(field)))
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.2))
    for axis, phase in zip(axes, ["prefill", "decode"]):
        field = f"{phase}_tokens_per_second"
        contexts, highest = set(), 0
        for label, color, rows, value in lines:
            points = curve(rows, lambda row: value(row, field))
            if not points:
                continue
            x, y = zip(*points)
            contexts.update(x)
            highest = max(highest, *y)
            axis.plot(x, y, color=color, marker="o", markersize=4, linewidth=1.8, label=label)
        axis.set_title(phase)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(FuncFormatter(tokens))
        shown = sorted(contexts)
        axis.set_xticks(shown[:: 2 if len(shown) > 7 else 1])
        axis.xaxis.set_minor_locator(NullLocator())
        if shown and len(shown) < 3:
            axis.set_xlim(shown[0] / 2, shown[-1] * 2)
        axis.set_ylim(0, highest * 1.1 or 1)
        axis.yaxis.set_major_formatter(FuncFormatter(number))
        axis.set_xlabel("prompt, tokens" if phase == "prefill" else "context, tokens")
        axis.set_ylabel("tokens/s")
    handles, labels = max((axis.get_legend_handles_labels() for axis in axes), key=lambda legend: len(legend[0]))
    used.sort(key=lambda result: result["date"])
    rounds = newest.get("rounds")
    bottom = caption(figure, used, f"batch 1, medians of {rounds} rounds" if rounds else "batch 1")
    if len(labels) > 1:
        figure.legend(handles, labels, fontsize=8, loc="lower left", bbox_to_anchor=(0.04, bottom - 0.01))
        bottom += 0.02 + 0.045 * len(labels)
    save(figure, out / f"sweep-{name}.svg", bottom)


def ablation(name, results, out):
    """Gain of each switch, with the spread of the rounds."""
    gains = {}
    for result in results:
        for gain in result["results"]:
            gains[gain["switch"], gain["phase"], gain["context"]] = gain
    if not gains:
        return
    most = max(sum(phase == which for _, phase, _ in gains) for which in ("prefill", "decode"))
    figure, axes = plt.subplots(1, 2, figsize=(9, 1.9 + 0.25 * most))
    for axis, phase in zip(axes, ["prefill", "decode"]):
        rows = sorted((gain for gain in gains.values() if gain["phase"] == phase), key=lambda gain: gain["gain_percent"])
        axis.set_title(phase)
        if not rows:
            axis.set_axis_off()
            continue
        gain = [row["gain_percent"] for row in rows]
        error = [
            [max(0, row["gain_percent"] - row["least_percent"]) for row in rows],
            [max(0, row["most_percent"] - row["gain_percent"]) for row in rows],
        ]
        axis.barh(range(len(rows)), gain, xerr=error, color=[GAIN if value >= 0 else LOSS for value in gain],
                  error_kw={"ecolor": TEXT, "elinewidth": 1, "capsize": 2}, height=0.65)
        axis.set_yticks(range(len(rows)), [f"{row['switch']} at {tokens(row['context'])}" for row in rows], fontsize=8)
        axis.set_ylim(len(rows) - most - 0.5, len(rows) - 0.5)
        # A gain of several times would hide the others.
        if max(gain) > 100:
            axis.set_xscale("symlog", linthresh=10)
            axis.xaxis.set_minor_locator(NullLocator())
        axis.axvline(0, color=TEXT, linewidth=0.8)
        low, high = min(0, *(row["least_percent"] for row in rows)), max(1, *(row["most_percent"] for row in rows))
        axis.set_xlim(low * 1.3 - 0.5, high * (2.5 if max(gain) > 100 else 1.2))
        for place, row in enumerate(rows):
            edge = max(row["most_percent"], row["gain_percent"], 0)
            axis.annotate(f"{row['gain_percent']:+.1f}", (edge, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
        axis.set_xlabel("faster with the switch on than off")
        axis.grid(axis="y", visible=False)
    bottom = caption(figure, results[-1:], "on over off in turns, medians, bars from the least to the most of the rounds")
    save(figure, out / f"ablation-{name}.svg", min(0.3, bottom * 4.2 / figure.get_figheight()))


def place_names(figure, axis, names):
    """Writes names beside their points, the largest first, each at the first place where it covers no other."""
    renderer = figure.canvas.get_renderer()
    taken = []
    for share, name, x, y in sorted(names, reverse=True):
        gap = 4 + 12 * share**0.5
        right = [(gap, step, "left") for step in (-3, 8, -14, 19, -25, 30, -36, 41, -47)]
        left = [(-gap, step, "right") for step in (-3, 8, -14, 19, -25)]
        for dx, dy, side in right[:3] + left[:3] + right[3:] + left[3:]:
            text = axis.annotate(name, (x, y), xytext=(dx, dy), textcoords="offset points", ha=side, fontsize=7.5)
            box = text.get_window_extent(renderer)
            if not any(box.overlaps(other) for other in taken) or dy == -47:
                taken.append(box)
                break
            text.remove()


def roofline(name, results, out):
    """Operations of the newest profile of each step under the limits of the machine."""
    newest = {result["step"]: result for result in results}
    figure, axis = plt.subplots(figsize=(9, 5.4))
    markers = {"decode": ("o", OURS), "prefill": ("s", PEERS[0])}
    bandwidth = max(result["limits"]["bytes_per_second"] for result in newest.values())
    peak = max((result["limits"].get("flops_per_second") or 0 for result in newest.values()))
    xs, ys, names = [], [], []
    for step, result in sorted(newest.items()):
        marker, color = markers[step]
        length = f"after {tokens(result['context'])} tokens" if step == "decode" else f"of {tokens(result['tokens'])} tokens"
        label = f"{step} {length}"
        for row in result["operations"]:
            if not (row["bytes"] and row["flops"] and row["share"] >= SMALLEST_SHARE):
                continue
            x, y = row["flops"] / row["bytes"], row["flops"] / row["seconds"]
            xs.append(x)
            ys.append(y)
            names.append((row["share"], f"{row['operation']} {100 * row['share']:.0f} %", x, y))
            axis.scatter(x, y, s=20 + 900 * row["share"], marker=marker, color=color, alpha=0.6, linewidths=0, label=label)
            label = None
    if not xs:
        plt.close(figure)
        return
    left, right = min(xs) / 3, max(xs) * 10
    bend = peak / bandwidth if peak else right
    axis.plot([left, min(bend, right)], [left * bandwidth, min(bend, right) * bandwidth], color=TEXT, linewidth=1.5)
    axis.annotate(f"{bandwidth / 1e9:.3g} GB/s", (left, left * bandwidth), xytext=(14, 2), textcoords="offset points", fontsize=8.5)
    if peak and bend < right:
        axis.plot([bend, right], [peak, peak], color=TEXT, linewidth=1.5)
        axis.annotate(f"{peak / 1e12:.3g} TFLOP/s", (bend, peak), xytext=(6, 5), textcoords="offset points", fontsize=8.5)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(left, right)
    axis.set_ylim(min(ys) / 4, max(peak, right * bandwidth if not peak else 0, max(ys)) * 3)
    for direction in (axis.xaxis, axis.yaxis):
        direction.set_minor_formatter(NullFormatter())
    axis.xaxis.set_major_formatter(FuncFormatter(number))
    axis.yaxis.set_major_formatter(FuncFormatter(number))
    axis.set_xlabel("operations for each byte that must be touched, FLOP/B")
    axis.set_ylabel("speed, FLOP/s")
    axis.legend(loc="lower right", fontsize=8.5, markerscale=1)
    for handle in axis.get_legend().legend_handles:
        handle.set_sizes([45])
    used = sorted(newest.values(), key=lambda result: result["date"])
    bottom = caption(figure, used, f"operations of at least 1 %, area and number are the share of the step; limits {used[-1]['limits']['source']}; integer products may exceed them")
    figure.tight_layout(rect=(0, bottom * 4.2 / 5.4, 1, 1))
    place_names(figure, axis, names)
    save(figure, out / f"roofline-{name}.svg", bottom * 4.2 / 5.4)


def main():
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description="Draws the pictures of bench/plots.")
    parser.add_argument("--results", type=Path, default=here.parent / "results")
    parser.add_argument("--out", type=Path, default=here)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    draws = {"sweep": sweep, "ablation": ablation, "profile": roofline}
    for name, kinds in sorted(load(options.results).items()):
        for which, results in kinds.items():
            draws[which](name, results, options.out)


main()
