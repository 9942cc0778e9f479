#!/bin/sh
# Installs nginx from Debian's packages (or Ubuntu's), for the tests that compare how HTTP is read.
# Where there is one, nothing is done. It is not started: tests start their own.
set -eu

if command -v nginx >/dev/null 2>&1 || [ -x /usr/sbin/nginx ]; then
    echo "install-nginx: nginx is here"
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ]; then
    echo "install-nginx: install nginx by hand" >&2
    exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -qq -y --no-install-recommends nginx-light
