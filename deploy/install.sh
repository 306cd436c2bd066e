#!/bin/sh
# Installs what was built, and removes it again: `make install`, `make uninstall`. Builds nothing.
#
#   install.sh install | uninstall
#
# From the environment:
#   BUILT       the folder with the programs (target/release)
#   DESTDIR     put before each path, for packages; without it, the user and the directories are made too
#   PREFIX      /usr/local
#   SYSCONFDIR  /etc
#   UNITDIR     PREFIX/lib/systemd/system; SYSUSERSDIR and TMPFILESDIR likewise
#   EXTCAPDIR   PREFIX/lib/wireshark/extcap: where Wireshark looks for strata-extcap
#   ZSHDIR      PREFIX/share/zsh/site-functions
set -eu

here=$(cd "$(dirname "$0")" && pwd)
PREFIX=${PREFIX:-/usr/local}
SYSCONFDIR=${SYSCONFDIR:-/etc}
DESTDIR=${DESTDIR:-}
UNITDIR=${UNITDIR:-$PREFIX/lib/systemd/system}
SYSUSERSDIR=${SYSUSERSDIR:-$PREFIX/lib/sysusers.d}
TMPFILESDIR=${TMPFILESDIR:-$PREFIX/lib/tmpfiles.d}
EXTCAPDIR=${EXTCAPDIR:-$PREFIX/lib/wireshark/extcap}
ZSHDIR=${ZSHDIR:-$PREFIX/share/zsh/site-functions}
BINDIR=$PREFIX/bin
MANDIR=$PREFIX/share/man/man1
DOCDIR=$PREFIX/share/doc/strata
CONFIG=$SYSCONFDIR/strata/strata.toml

# Those that have to be there; strata-sql is installed where it was built (make sql).
PROGRAMS="strata strata-telemetry strata-stream strata-vectors strata-fleet strata-models"
OPTIONAL=strata-sql

fail() {
    echo "$0: $*" >&2
    exit 1
}

# put MODE FILE PATH
put() {
    install -D -m "$1" "$2" "$DESTDIR$3"
}

install_all() {
    for program in $PROGRAMS strata-manual; do
        [ -x "$BUILT/$program" ] || fail "$BUILT/$program: not there: build it first, with make build"
    done
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
    "$BUILT/strata-manual" "$made"
    "$BUILT/strata" config init >"$made/strata.toml"

    for program in $PROGRAMS $OPTIONAL; do
        [ ! -x "$BUILT/$program" ] || put 755 "$BUILT/$program" "$BINDIR/$program"
    done
    for page in "$made"/man/man1/*.1; do
        put 644 "$page" "$MANDIR/$(basename "$page")"
    done
    put 644 "$made/bash-completion/completions/strata" "$PREFIX/share/bash-completion/completions/strata"
    put 644 "$made/zsh/site-functions/_strata" "$ZSHDIR/_strata"
    put 644 "$made/fish/vendor_completions.d/strata.fish" "$PREFIX/share/fish/vendor_completions.d/strata.fish"

    for unit in "$here"/*.service; do
        sed "s|/usr/bin/strata |$BINDIR/strata |" "$unit" >"$made/unit"
        put 644 "$made/unit" "$UNITDIR/$(basename "$unit")"
    done
    put 644 "$here/sysusers.conf" "$SYSUSERSDIR/strata.conf"
    put 644 "$here/tmpfiles.conf" "$TMPFILESDIR/strata.conf"

    put 644 "$made/strata.toml" "$DOCDIR/strata.toml"
    put 644 "$here/grafana.json" "$DOCDIR/grafana.json"
    put 644 "$here/grafana-fleet.json" "$DOCDIR/grafana-fleet.json"
    put 644 "$here/prometheus-alerts.yml" "$DOCDIR/prometheus-alerts.yml"
    put 644 "$here/../LICENSE-APACHE" "$DOCDIR/LICENSE-APACHE"
    put 644 "$here/../LICENSE-MIT" "$DOCDIR/LICENSE-MIT"
    if [ -e "$DESTDIR$CONFIG" ]; then
        echo "$DESTDIR$CONFIG stays as it is; $DESTDIR$DOCDIR/strata.toml has all keys of this version"
    else
        put 644 "$made/strata.toml" "$CONFIG"
    fi

    mkdir -p "$DESTDIR$EXTCAPDIR"
    ln -sf "$BINDIR/strata" "$DESTDIR$EXTCAPDIR/strata-extcap"
    [ -z "$DESTDIR" ] && [ "$(id -u)" = 0 ] || return 0
    ! command -v systemd-sysusers >/dev/null || systemd-sysusers "$SYSUSERSDIR/strata.conf"
    ! command -v systemd-tmpfiles >/dev/null || systemd-tmpfiles --create "$TMPFILESDIR/strata.conf"
    [ ! -d /run/systemd/system ] || systemctl daemon-reload
}

# Removes a file that install_all made.
drop() {
    for path; do
        rm -f "$DESTDIR$path"
    done
}

uninstall_all() {
    if [ -z "$DESTDIR" ] && [ -d /run/systemd/system ]; then
        for unit in "$here"/*.service; do
            name=$(basename "$unit" .service)
            case $name in *@) name="$name*" ;; esac
            systemctl disable --now "$name.service" 2>/dev/null || systemctl stop "$name.service" || true
        done
    fi
    for program in $PROGRAMS $OPTIONAL; do
        drop "$BINDIR/$program"
    done
    rm -f "$DESTDIR$MANDIR/strata.1" "$DESTDIR$MANDIR"/strata-*.1
    drop "$PREFIX/share/bash-completion/completions/strata" "$ZSHDIR/_strata" \
        "$PREFIX/share/fish/vendor_completions.d/strata.fish" "$SYSUSERSDIR/strata.conf" \
        "$TMPFILESDIR/strata.conf" "$EXTCAPDIR/strata-extcap"
    for unit in "$here"/*.service; do
        drop "$UNITDIR/$(basename "$unit")"
    done
    # A configuration that was changed is the user's.
    if cmp -s "$DESTDIR$CONFIG" "$DESTDIR$DOCDIR/strata.toml"; then
        drop "$CONFIG"
    elif [ -e "$DESTDIR$CONFIG" ]; then
        echo "$DESTDIR$CONFIG was changed, and stays"
    fi
    drop "$DOCDIR/strata.toml" "$DOCDIR/grafana.json" "$DOCDIR/grafana-fleet.json" "$DOCDIR/prometheus-alerts.yml" "$DOCDIR/LICENSE-APACHE" "$DOCDIR/LICENSE-MIT"
    for dir in "$DOCDIR" "$SYSCONFDIR/strata"; do
        [ ! -d "$DESTDIR$dir" ] || rmdir --ignore-fail-on-non-empty "$DESTDIR$dir"
    done
    [ -n "$DESTDIR" ] || [ ! -d /run/systemd/system ] || systemctl daemon-reload
    [ -n "$DESTDIR" ] || [ ! -d /var/lib/strata ] || echo "/var/lib/strata and the user strata stay"
}

case ${1:-} in
install)
    : "${BUILT:?the folder with the programs}"
    install_all
    ;;
uninstall) uninstall_all ;;
*) fail "install or uninstall?" ;;
esac
