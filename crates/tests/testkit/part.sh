#!/bin/sh
# The runner of cargo for the two parts of `make test`: runs a test program if it belongs to PART. `program` are the
# tests of the program `strata`, which drive processes and interfaces; `rest` are those of all other crates.
# usage: part.sh PART TEST [ARGUMENT...]
set -eu
part=$1
shift
case $CARGO_MANIFEST_DIR in
*/crates/programs/strata) of=program ;;
*) of=rest ;;
esac
[ "$part" = "$of" ] || exit 0
exec "$@"
