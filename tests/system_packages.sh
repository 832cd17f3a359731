#!/bin/sh
# The browser tests need Chromium, the history tests a Prometheus server. Both come from Debian's packages.
set -eu
missing=""
command -v chromium >/dev/null 2>&1 || [ -n "${CHROMIUM:-}" ] || missing="$missing chromium"
command -v prometheus >/dev/null 2>&1 || missing="$missing prometheus"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing from the distribution:$missing"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
    echo "the tests need:$missing. Install with: sudo apt-get install$missing" >&2
    exit 1
fi
