#!/bin/sh
# The emulated @TOOL@. Finds the install that this file is in, then a Python, and becomes the tool.
self=$0
case $self in */*) ;; *) self=./$self ;; esac
while [ -L "$self" ]; do
  link=$(readlink "$self")
  case $link in /*) self=$link ;; *) self=${self%/*}/$link ;; esac
done
root=$(CDPATH= cd -P -- "${self%/*}/.." && pwd -P) || exit 127
python=${PTOCACHE_EMULATOR_PYTHON:-$root/python3}
[ -x "$python" ] || python=python3
exec "$python" -I -S -B -c 'import sys
sys.path.insert(0, sys.argv.pop(1))
from emulated_cann.@MODULE@ import main
sys.exit(main(sys.argv[1:]))' "$root/lib" "$@"
