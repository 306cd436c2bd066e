#!/bin/sh
# Builds the fuzz targets, seeds their corpora and runs each for a while.
#
#   fuzz/run.sh [TARGET...]      all targets, or these
#
# SECONDS_EACH   seconds per target (default 600)
# JOBS           targets at a time (default 1)
# STRATA_DATA    folder with formats/ (default: shared/data beside the project)
# SANITIZER      address or none (default: address where the toolchain can)
#
# Exit status: 0 if nothing was found, 1 if something was.
set -eu
export LC_ALL=C
cd "$(dirname "$0")"

SECONDS_EACH=${SECONDS_EACH:-600}
JOBS=${JOBS:-1}
captures=${STRATA_DATA:-../../shared/data}/formats
all="pcap pcapng pcapng_sections dissect model block filter labels rules ports config api roce dta int segments control archive eve vectors vector_sources export agents stream otlp nvme marple"
triple=$(rustc -vV | sed -n 's/^host: //p')
[ $# -gt 0 ] || set -- $all
for target; do
    case " $all " in
        *" $target "*) ;;
        *) echo "run.sh: no target $target; there are: $all" >&2; exit 2 ;;
    esac
done
[ -d "$captures" ] || { echo "run.sh: no captures at $captures: set STRATA_DATA" >&2; exit 2; }

# Whether programs with the address sanitizer can be built and run here. Nightly Rust has its
# flag; stable Rust has its runtime, and the flag with RUSTC_BOOTSTRAP=1.
can_sanitize() {
    mkdir -p target
    echo 'fn main() {}' | RUSTC_BOOTSTRAP=1 rustc -Zsanitizer=address --target "$triple" --crate-name probe \
        -o target/probe - 2>target/probe.txt && target/probe 2>>target/probe.txt
}

if [ -z "${SANITIZER:-}" ]; then
    SANITIZER=none
    if can_sanitize; then SANITIZER=address; fi
fi
case $SANITIZER in
    address) sanitize="-Zsanitizer=address" bootstrap=1 ;;
    none)
        sanitize='' bootstrap=0
        echo "run.sh: without the address sanitizer: what reads out of bounds is found only if it crashes" >&2
        ;;
    *) echo "run.sh: SANITIZER is address or none, not $SANITIZER" >&2; exit 2 ;;
esac
# Leaks are for the bound on memory to find. What was freed is held by the sanitizer for a while.
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=0:quarantine_size_mb=64}"

# What cargo-fuzz passes: counters at every edge, and the operands of comparisons. With
# --target, cargo keeps RUSTFLAGS from build scripts and procedural macros. Programs with and
# without the sanitizer lie apart, so that neither build throws the other's away.
build_targets() {
    bins=
    for target; do bins="$bins --bin $target"; done
    RUSTC_BOOTSTRAP=$bootstrap RUSTFLAGS="$sanitize --cfg fuzzing -C debug-assertions -C overflow-checks \
-C passes=sancov-module \
-C llvm-args=-sanitizer-coverage-level=4 \
-C llvm-args=-sanitizer-coverage-inline-8bit-counters \
-C llvm-args=-sanitizer-coverage-pc-table \
-C llvm-args=-sanitizer-coverage-trace-compares" \
        cargo build --quiet --release --target "$triple" --target-dir "target/$SANITIZER" $bins
}

# Short captures of all kinds, each recorded into a log of its own.
record_logs() {
    rm -rf target/logs
    mkdir -p target/logs
    find "$captures" -type f -size -8k | sort | awk 'NR % 25 == 0' | {
        n=0
        while read -r capture; do
            n=$((n + 1))
            mode=default
            [ $((n % 2)) -eq 0 ] || mode=log-all
            ../target/debug/strata record -r "$capture" -o target/logs/$n --mode $mode \
                --hash-seed 1 >target/logs/record.txt 2>&1 || true
        done
    }
}

seed() {
    cargo build --quiet --release --bin seeds
    # In the project's own target folder, where the next build of it finds what this one made.
    cargo build --quiet --manifest-path ../Cargo.toml --workspace --bin strata
    record_logs
    target/release/seeds "$captures" target/logs corpus
    for folder in regressions/*/; do
        [ -d "$folder" ] || continue
        mkdir -p "corpus/$(basename "$folder")"
        cp "$folder"* "corpus/$(basename "$folder")/"
    done
}

# One target; its output goes to artifacts/TARGET.log.
fuzz() {
    mkdir -p "corpus/$1" "artifacts/$1"
    set -- "$1" "-max_total_time=$SECONDS_EACH" -timeout=10 -rss_limit_mb=2048 \
        "-artifact_prefix=artifacts/$1/" -print_final_stats=1
    case $1 in
        block | segments | vectors | vector_sources) set -- "$@" -max_len=16384 ;;
        model) set -- "$@" -max_len=65536 ;;
        *) set -- "$@" -max_len=4096 ;;
    esac
    [ ! -f "dictionaries/$1.dict" ] || set -- "$@" "-dict=dictionaries/$1.dict"
    target=$1
    shift
    status=0
    "$bin/$target" "$@" "corpus/$target" >"artifacts/$target.log" 2>&1 || status=$?
    echo $status >"artifacts/$target.status"
}

# target, runs, coverage in edges, features, corpus, findings
row() {
    log=artifacts/$1.log
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    # The last line that libFuzzer printed: "#N  DONE  cov: C ft: F corp: K/..."
    last=$(grep -aE '^#[0-9]+.*cov:' "$log" | tail -n 1)
    [ -n "$runs" ] || runs=$(echo "$last" | sed 's/^#\([0-9]*\).*/\1/')
    first=$(grep -aE '^#[0-9]+.*INITED cov:' "$log" | sed 's/.*cov: \([0-9]*\).*/\1/')
    cov=$(echo "$last" | sed 's/.*cov: \([0-9]*\).*/\1/')
    corpus=$(echo "$last" | sed 's/.*corp: \([0-9]*\).*/\1/')
    found=$(find "artifacts/$1" -type f -newer artifacts/started ! -name 'slow-unit-*' | wc -l)
    [ "$(cat "artifacts/$1.status")" -eq 0 ] || [ "$found" -gt 0 ] || found=1
    printf '%-15s %12s %9s %9s %8s %9s\n' "$1" "${runs:-0}" "${first:--}" "${cov:--}" "${corpus:--}" "$found"
    [ "$found" -eq 0 ]
}

bin=target/$SANITIZER/$triple/release
build_targets "$@"
seed
# Without an own folder for temporary files, pcap and pcapng would write to a disk.
[ -n "${TMPDIR:-}" ] || [ ! -w /dev/shm ] || export TMPDIR=/dev/shm
mkdir -p artifacts
touch artifacts/started
running=0
for target; do
    if [ "$running" -ge "$JOBS" ]; then
        wait
        running=0
    fi
    fuzz "$target" &
    running=$((running + 1))
done
wait

echo
printf '%-15s %12s %9s %9s %8s %9s\n' target runs cov-seeds coverage corpus findings
clean=0
for target; do row "$target" || clean=1; done
[ $clean -eq 0 ] || echo "run.sh: inputs are in fuzz/artifacts; fuzz/README.md says what to do with them" >&2
exit $clean
