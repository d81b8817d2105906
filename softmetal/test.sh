#!/usr/bin/env bash
# Runs the Metal host code on Linux: `softmetal/test.sh` runs all tests of this workspace, `softmetal/test.sh check` (or
# clippy, build, …) any other cargo command in it.
#
# rustc refuses `#[link(kind = "framework")]` off Apple's systems, and objc2-metal has one. So cargo gets a copy of it, in
# target/, without that line.
set -euo pipefail
cd "$(dirname "$0")"

copy=../target/softmetal/objc2-metal
version=$(sed -n '/^name = "objc2-metal"$/{n;s/version = "\(.*\)"/\1/p;}' ../Cargo.lock)
if [ "$(cat "$copy/.version" 2>/dev/null)" != "$version" ]; then
    cargo fetch --quiet --manifest-path ../Cargo.toml
    source=$(cargo metadata --manifest-path ../Cargo.toml --format-version 1 |
        grep -o '"manifest_path":"[^"]*/objc2-metal-[^"/]*/Cargo.toml"' | head -n 1 | sed 's/.*:"\(.*\)\/Cargo.toml"/\1/')
    rm -rf "$copy"
    mkdir -p "$(dirname "$copy")"
    cp -R "$source" "$copy"
    chmod -R u+w "$copy"
    find "$copy/src" -name '*.rs' -exec sed -i '/^#\[link(name = "Metal", kind = "framework")\]$/d' {} +
    echo "$version" > "$copy/.version"
fi

command=${1:-test}
[ $# -eq 0 ] || shift
exec cargo "$command" --release "$@"
