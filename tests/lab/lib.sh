# Shell functions the lab's scripts share.  Needs env.sh.
set -euo pipefail
mkdir -p "$LAB_DIR"/{etc,log,run}
LAB_T0="${LAB_T0:-$(date +%s)}"
export LAB_T0

say() { printf '[lab %4ds] %s\n' "$(($(date +%s) - LAB_T0))" "$*"; }
fail() { echo "lab: $*" >&2; return 1; }

# A pid file is believed only if the process still has the start time written with it:
# numbers are used again.  A zombie does not run: nobody may care to bury it.
start_time() { sed -n 's/.*) \([^Z]\)/\1/p' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
remember() { echo "$2 $(start_time "$2")" >"$LAB_DIR/run/$1.pid"; } # name pid
running() {                                                          # name -> its pid
  local pid born
  [ -s "$LAB_DIR/run/$1.pid" ] && read -r pid born <"$LAB_DIR/run/$1.pid" &&
    [ -n "$born" ] && [ "$(start_time "$pid")" = "$born" ] && echo "$pid"
}

spawn() { # name command...: in the background, in a session of its own, unless it runs
  local name=$1; shift
  running "$name" >/dev/null && return 0
  LAB_DAEMON=$LAB_DIR setsid "$@" >>"$LAB_DIR/log/$name.log" 2>&1 </dev/null 9>&- &
  remember "$name" $!
}

stop() { # name [signal]: and what it left behind in its session
  local pid n=100
  pid=$(running "$1") || { rm -f "$LAB_DIR/run/$1.pid"; return 0; }
  kill "-${2:-TERM}" "$pid" 2>/dev/null || true
  while running "$1" >/dev/null && [ $n -gt 0 ]; do n=$((n - 1)); sleep 0.1; done
  kill -KILL -- "-$pid" 2>/dev/null || true
  rm -f "$LAB_DIR/run/$1.pid"
}

other_labs() { # directories of labs beside this one whose daemons run
  { cat /proc/[0-9]*/environ 2>/dev/null || true; } | tr '\0' '\n' |
    sed -n 's/^LAB_DAEMON=//p' | { grep -vxF "$LAB_DIR" || true; } | sort -u
}

GUESTS='(lab|contract|instance)-' # names: the lab's, the contract tests', the service's own

enter() { # number of a host: the words before a command that is to run there
  [ "$1" = 1 ] || echo "nsenter --target $(running "$LAB_HOST_2") $LAB_NAMESPACES --"
}

unmount() { # what is mounted in the lab's directory, as seen from here
  local mount
  sed -n "s#^[^ ]* \($LAB_DIR/[^ ]*\) .*#\1#p" /proc/mounts | sort -r | while read -r mount; do
    umount "$mount" || true
  done
}

wait_for() { # seconds what command...: until the command succeeds
  local deadline=$(($(date +%s) + $1)) what=$2; shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$(date +%s)" -lt $deadline ] || fail "waited in vain for $what; see $LAB_DIR/log" || return 1
    sleep 0.1
  done
}

listeners() { # port -> who listens there, whatever the address: "pid program ..."
  ss -Hltnp "sport = :$1" | grep -o 'pid=[0-9]*' | cut -d= -f2 | sort -u | xargs -r ps -o pid=,args= -p
}

listens() { # name port: a process of that daemon's session does
  local leader pid rest
  leader=$(running "$1") || return 1
  while read -r pid rest; do
    [ "$(ps -o sid= -p "$pid" | tr -d ' ')" != "$leader" ] || return 0
  done < <(listeners "$2")
  return 1
}

port_free() { # name port setting: nobody but that daemon listens; else we would talk to a stranger
  [ -n "$(ss -Hltn "sport = :$2")" ] && ! listens "$1" "$2" || return 0
  fail "port $2, of $1, is taken by: $(listeners "$2")
  stop it, or give the lab another port: $3=..."
}

wait_daemon() { # name command...: until the command succeeds; a dead daemon is not waited for
  local name=$1 tries=0; shift
  until "$@"; do
    running "$name" >/dev/null ||
      { tail -n 20 "$LAB_DIR/log/$name.log" >&2; fail "$name died" || return 1; }
    [ $((tries += 1)) -lt 900 ] || fail "waited in vain: $*; see $LAB_DIR/log" || return 1
    sleep 0.1
  done
}

wait_port() { wait_daemon "$1" listens "$1" "$2"; } # name port: until that daemon listens

tools() { # package=command... or package...: what the packages bring can be called
  local each missing=()
  for each; do
    [ "$each" = "${each#*=}" ] || command -v "${each#*=}" >/dev/null ||
      missing+=("${each#*=} (package ${each%%=*})")
  done
  [ ${#missing[@]} = 0 ] || fail "missing, with PATH=$PATH:$(printf '\n  %s' "${missing[@]}")"
}

packages() { # name...: install what is missing; nothing a package brings is started
  local missing=() name policy=/usr/sbin/policy-rc.d ours= bad=
  for name in "${@%%=*}"; do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy; chmod 755 $policy; ours=1; }
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update >"$LAB_DIR/log/apt.log" 2>&1 || say "apt-get update failed; going on"
  apt-get -o DPkg::Lock::Timeout=300 -qq install -y --no-install-recommends "${missing[@]}" \
    >>"$LAB_DIR/log/apt.log" 2>&1 || bad=1
  [ -z "$ours" ] || rm -f $policy
  [ -z "$bad" ] || { tail -5 "$LAB_DIR/log/apt.log" >&2; fail "cannot install ${missing[*]}"; }
}

venv() { # directory requirements-file: made once per content of the file
  local sum; sum=$(sha256sum <"$2")
  [ "$(cat "$1/.lab-installed" 2>/dev/null)" != "$sum" ] || return 0
  "$LAB_PYTHON" -m venv "$1"
  "$1/bin/pip" install --disable-pip-version-check -r "$2" >"$LAB_DIR/log/pip-$(basename "$1").log" 2>&1 ||
    { tail -5 "$LAB_DIR/log/pip-$(basename "$1").log" >&2; return 1; }
  echo "$sum" >"$1/.lab-installed"
}
