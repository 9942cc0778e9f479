#!/bin/sh
# Installs Chromium from Debian's packages (or Ubuntu's), for the tests of the operators' page. Where
# there is one, or KAIROS_BROWSER names one, nothing is done.
set -eu

for name in "${KAIROS_BROWSER:-chromium}" chromium-browser google-chrome; do
    if command -v "$name" >/dev/null 2>&1; then
        echo "install-browser: $name is here"
        exit 0
    fi
done
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ]; then
    echo "install-browser: install Chromium by hand, or name one: KAIROS_BROWSER=PATH" >&2
    exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core
