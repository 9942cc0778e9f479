#!/bin/sh
# Installs promtool, from Debian's package of Prometheus, for the tests of its rules. Where there is
# one, nothing is done.
set -eu

if command -v promtool >/dev/null 2>&1; then
    echo "install-promtool: it is here"
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ]; then
    echo "install-promtool: install Prometheus by hand" >&2
    exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends prometheus
