#!/bin/sh
# Records a real capture and shows the result.
#
#   demo/run.sh STRATA DIRECTORY
set -eu
strata=$1
out=$2
capture=demo/mix.pcap
rm -rf "$out"
mkdir -p "$out"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '$ %s\n' "$*"; "$@"; }

say "1. Record a capture: each packet is classified, and its class decides how much is kept"
run "$strata" record -r "$capture" -o "$out/log"

say "2. Look at it: the largest flows, and packets as tcpdump prints them, with the class and reason of each"
run "$strata" top "$out/log" -n 3
run "$strata" read "$out/log" -c 4 host 172.16.0.5

say "3. The log as a capture file again; each packet has a comment that says why it was kept"
run "$strata" export "$out/log" -w "$out/all.pcapng"
run "$strata" export "$out/log" -w "$out/web.pcapng" tcp port 80

say "4. What was kept of its attacks over TCP: an HTTP flood and SQL injection (demo/README.md)"
with_payload='tcp and ip[2:2] - ((ip[0] & 0xf) << 2) - ((tcp[12] & 0xf0) >> 2) != 0'
attacks="(host 172.16.0.5 or host 172.16.0.1) and $with_payload"
run "$strata" export "$out/log" -w "$out/attacks.pcapng" "$attacks"
# The first bytes of each flow, as many of them as have the same size.
"$strata" record -r "$capture" -o "$out/first" --default header --detail none --first-bytes 650 >/dev/null 2>&1
"$strata" export "$out/first" -w "$out/first.pcapng" "$attacks" 2>/dev/null
count() { grep -a -o "granularity=$1" "$out/$2.pcapng" | wc -l; }
echo "$(count full attacks) of $(count '[a-z]*' attacks) packets with payload have it in the log, and all have their headers."
echo "In a log of the same size, the first 650 bytes of each flow keep it of $(count full first), one packet in ten of 1 or 2."

# 949,936
grouped() { printf '%s\n' "$1" | sed -e ':next' -e 's/\([0-9]\)\([0-9]\{3\}\)\($\|,\)/\1,\2\3/' -e 't next'; }
captured=$(wc -c <"$capture")
logged=$(cat "$out"/log/blocks/* | wc -c)
say "The capture has $(grouped "$captured") bytes, the log $(grouped "$logged")."
echo "Why, in full:           $strata info $out/log --reasons=2"
echo "Open it in Wireshark:   wireshark $out/all.pcapng"
echo "Kept whole only:        wireshark -Y 'frame.comment contains \"granularity=full\"' $out/all.pcapng"
echo "In a browser:           http://127.0.0.1:9470/ while this runs: $strata serve $out/log"
