#!/bin/sh
# Makes .venv-frameworks/NAME for each agent framework of which flows are tested, from its lock file
# in tests/frameworks: 3 GB together. Each is whole when its stamp is there, and then left alone.
# Names after the folder: of these frameworks alone.
set -eu

root=${1:-.venv-frameworks}
[ $# -eq 0 ] || shift
python=${PYTHON:-python3}

for flow in tests/frameworks/*/; do
    name=$(basename "$flow")
    case " ${*:-$name} " in *" $name "*) ;; *) continue ;; esac
    lock=$flow/requirements.lock
    venv=$root/$name
    [ -f "$lock" ] || continue
    if [ -f "$venv/.installed" ] && [ ! "$lock" -nt "$venv/.installed" ]; then
        continue
    fi
    rm -f "$venv/.installed"
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    echo "install-frameworks: $name into $venv"
    "$venv/bin/python" -m pip --disable-pip-version-check --quiet install --no-compile --no-deps -r "$lock" || {
        echo "install-frameworks: $name could not be installed; is a package index reachable?" >&2
        exit 1
    }
    touch "$venv/.installed"
done
[ $# -gt 0 ] || touch "$root/.installed"
