#!/bin/sh
# Makes a Debian package of what was built: `make deb`. The files are those of `make install`.
#
#   deb.sh OUTPUT
#
# From the environment: BUILT, the folder with the programs; COMPRESSION, as dpkg-deb has it (xz). OUTPUT is the
# folder of the package.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
output=$1
: "${BUILT:?the folder with the programs}"
command -v dpkg-deb >/dev/null || {
    echo "$0: dpkg-deb is missing, which Debian has: nothing was made" >&2
    exit 1
}
architecture=$(dpkg --print-architecture)
[ -x "$BUILT/strata" ] || {
    echo "$0: $BUILT/strata: not there: build it first, with make build" >&2
    exit 1
}
version=$("$BUILT/strata" -V | cut -d ' ' -f 2)
case $architecture in
amd64) triplet=x86_64-linux-gnu ;;
arm64) triplet=aarch64-linux-gnu ;;
*) triplet=$(gcc -print-multiarch) ;;
esac

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"
umask 022
BUILT=$BUILT DESTDIR=$tree PREFIX=/usr SYSCONFDIR=/etc UNITDIR=/lib/systemd/system \
    EXTCAPDIR=/usr/lib/$triplet/wireshark/extcap ZSHDIR=/usr/share/zsh/vendor-completions \
    sh "$here/install.sh" install

# As Debian's policy has them: compressed pages, one file of licences.
gzip -9 -n "$tree"/usr/share/man/man1/*.1
{
    echo "Strata is licensed under either of these, at your option."
    echo "LICENSE-THIRD-PARTY.gz has those of the packages that it contains."
    for licence in MIT APACHE; do
        printf '\n%s\n\n' "--- LICENSE-$licence ---"
        cat "$tree/usr/share/doc/strata/LICENSE-$licence"
    done
} >"$tree/usr/share/doc/strata/copyright"
rm "$tree"/usr/share/doc/strata/LICENSE-*
# The packages that the programs contain, with their licences.
"${PYTHON:-python3}" "$here/third_party.py" "$tree/usr/share/doc/strata" $(cd "$tree/usr/bin" && ls strata*)
gzip -9 -n "$tree/usr/share/doc/strata/LICENSE-THIRD-PARTY"
gzip -9 -n -c "$here/../CHANGELOG.md" >"$tree/usr/share/doc/strata/changelog.gz"

# The C library is the only one that programs load; its version is the newest that they name.
glibc=$(for program in "$tree"/usr/bin/strata*; do
    grep -a -o 'GLIBC_[0-9][0-9.]*' "$program" || true
done | sed 's/GLIBC_//' | sort -V | tail -1)
mkdir "$tree/DEBIAN"
cat >"$tree/DEBIAN/control" <<END
Package: strata
Version: $version
Architecture: $architecture
Maintainer: ${STRATA_MAINTAINER:-Strata <root@localhost>}
Section: net
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$tree" | cut -f 1)
Depends: libc6${glibc:+ (>= $glibc)}, libgcc-s1
Recommends: systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles
Suggests: wireshark, tshark
Description: network traffic logger that keeps headers and the payload that matters
 Strata records packets of interfaces and capture files into a log. It keeps the
 headers of every packet and, within a budget, payload: of short flows whole, and
 the start of the others. Exported, it opens in Wireshark.
END
echo /etc/strata/strata.toml >"$tree/DEBIAN/conffiles"

units=$(cd "$here" && ls ./*.service | sed 's|^\./||; s|@\.service$|@*.service|' | tr '\n' ' ')
cat >"$tree/DEBIAN/postinst" <<'END'
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    ! command -v systemd-sysusers >/dev/null || systemd-sysusers strata.conf
    ! command -v systemd-tmpfiles >/dev/null || systemd-tmpfiles --create strata.conf
    [ ! -d /run/systemd/system ] || systemctl daemon-reload
fi
END
cat >"$tree/DEBIAN/prerm" <<END
#!/bin/sh
set -e
if [ "\$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl stop $units|| true
fi
END
cat >"$tree/DEBIAN/postrm" <<'END'
#!/bin/sh
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload
END
chmod 755 "$tree/DEBIAN/postinst" "$tree/DEBIAN/prerm" "$tree/DEBIAN/postrm"

mkdir -p "$output"
package=$output/strata_${version}_$architecture.deb
dpkg-deb --root-owner-group -Z"${COMPRESSION:-xz}" --build "$tree" "$package"
# Its findings are for a reader: no unit is enabled, for example, which is on purpose.
! command -v lintian >/dev/null || lintian --no-tag-display-limit "$package" || true
