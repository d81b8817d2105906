"""Draws the loss curve of one or more training logs, one after the other, as an SVG.

  curve.py --out FILE LOG...
"""

import argparse
import json
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM = 720, 340, 50, 40


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("logs", nargs="+")
    args = parser.parse_args()
    points, held, borders, seen = [], [], [], 0
    for path in args.logs:
        log = json.loads(Path(path).read_text())
        points += [(seen + tokens, loss) for _, tokens, loss, *_ in log["steps"]]
        held += [{**entry, "tokens": seen + entry["tokens"]} for entry in log["heldout"]]
        seen += log["tokens"]
        borders.append(seen)
    top = 5.0

    def at(tokens, loss):
        x = LEFT + (WIDTH - LEFT - 15) * tokens / seen
        return f"{x:.1f},{HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 15) * min(loss, top) / top:.1f}"

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">']
    parts.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')
    for loss in range(int(top) + 1):
        y = at(0, loss).split(",")[1]
        parts.append(f'<path d="M{LEFT},{y}H{WIDTH - 15}" stroke="#ddd"/><text x="{LEFT - 8}" y="{y}" text-anchor="end" dy="4">{loss}</text>')
    for millions in range(0, seen // 1_000_000 + 1, 100):
        x = at(millions * 1e6, 0).split(",")[0]
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{millions} M</text>')
    for border in borders[:-1]:
        x = at(border, 0).split(",")[0]
        parts.append(f'<path d="M{x},15V{HEIGHT - BOTTOM}" stroke="#999" stroke-dasharray="4"/>')
    parts.append(f'<polyline points="{" ".join(at(*p) for p in points)}" fill="none" stroke="#36c" stroke-width="1.3"/>')
    kinds = {"books": ("#c33", "books"), "tools": ("#393", "replies beside tools"), "chats": ("#a6a", "replies of small talk")}
    for entry in held:
        for kind, (color, _) in kinds.items():
            x, y = at(entry["tokens"], entry[kind]).split(",")
            parts.append(f'<circle cx="{x}" cy="{y}" r="3.5" fill="{color}"/>')
    labels = [("#36c", "training loss, nats a token, all data mixed")] + [(c, f"held out, 4-bit: {label}") for c, label in kinds.values()]
    for i, (color, label) in enumerate(labels):
        parts.append(f'<text x="{WIDTH - 340}" y="{30 + 17 * i}" fill="{color}">{label}</text>')
    parts.append(f'<text x="{(WIDTH + LEFT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">tokens seen</text></svg>')
    Path(args.out).write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
