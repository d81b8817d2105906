"""Averages the weights of two checkpoints, of which one was trained from the other: much of what each does better is kept.

  average.py --first DIR --second DIR --out DIR [--share 0.5]

DIR is a checkpoint of train.py or a converted one. --share is that of the second.
"""

import argparse

import checkpoint


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", required=True)
    parser.add_argument("--second", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--share", type=float, default=0.5, help="of the second checkpoint")
    args = parser.parse_args()
    first, second = checkpoint.load(args.first), checkpoint.load(args.second)
    if first.keys() != second.keys():
        raise SystemExit(f"{args.first} and {args.second} hold different weights: {sorted(first.keys() ^ second.keys())[:3]}")
    checkpoint.save({name: w.lerp(second[name], args.share) for name, w in first.items()}, args.out)


if __name__ == "__main__":
    main()
