# Makes this emulated CANN install the toolchain of a shell: `. set_env.sh`, as with a real install's set_env.sh.
# bash tells where a sourced file is; another shell does not, and then it is where the install was written.
_ptocache_root=@ROOT@
if [ -n "${BASH_SOURCE:-}" ]; then
  _ptocache_root=$(CDPATH='' cd -- "$(dirname -- "$BASH_SOURCE")" && pwd -P)
fi
export ASCEND_HOME_PATH="$_ptocache_root"
export ASCEND_TOOLKIT_HOME="$_ptocache_root"
export PTOAS_BIN="$_ptocache_root/bin/ptoas"
unset BISHENG_HOME
case ":${PATH:-}:" in
  ":$_ptocache_root/bin:"*) ;;
  *) export PATH="$_ptocache_root/bin${PATH:+:$PATH}" ;;
esac
case ":${PYTHONPATH:-}:" in
  ":$_ptocache_root/python:"*) ;;
  *) export PYTHONPATH="$_ptocache_root/python${PYTHONPATH:+:$PYTHONPATH}" ;;
esac
unset _ptocache_root
