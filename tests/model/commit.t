#!/bin/sh
# commit.t [--full] - checks the model of the commit protocol (commit.pml) with spin: the small instances through all their states, then
# that each seeded error is found. --full: also three attempts, a reader and a collector at once (minutes, two gigabytes). TAP.
set -u
model=$(dirname "$0")/commit.pml
for tool in spin ${CC:-cc}; do
    command -v "$tool" >/dev/null 2>&1 || {
        echo "1..0 # SKIP $tool is not installed: THE COMMIT PROTOCOL WAS NOT CHECKED (tools/bootstrap installs it)"
        exit 0
    }
done
dir=$(mktemp -d) || exit 74
trap 'rm -rf "$dir"' EXIT
trap 'exit 75' HUP INT TERM
cp "$model" "$dir/commit.pml" && cd "$dir" || exit 74
n=0 failed=0

tap() { # 0|1 text
    n=$((n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $n - $2"
    else
        echo "not ok $n - $2"
        failed=$((failed + 1))
        sed 's/^/# /' out | tail -25
    fi
}

# The result is in `out`: "errors: 0" after a search that was completed, or "errors: 1".
search() { # options of the model, of the compiler
    rm -f pan pan.c out
    # shellcheck disable=SC2086
    spin -a $1 commit.pml >out 2>&1 &&
        ${CC:-cc} $2 -w -DSAFETY -DNOFAIR -DVECTORSZ=512 -DMEMLIM="${memory:-4000}" -o pan pan.c >>out 2>&1 &&
        ./pan -m10000 -w22 -n >>out 2>&1
}

# The large instances are compressed to fit, and worth the optimiser; the small ones are through before that would pay (a gigabyte at most).
holds() { # options what
    search "$1" "$compiler"
    states=$(sed -n 's/^ *\([0-9][0-9.e+]*\) states, stored.*/\1/p' out)
    if grep -q 'errors: 0' out && ! grep -qE 'Search not completed|too small|out of memory|reached -DMEMLIM' out; then
        tap 0 "$2: $states states, all claims hold"
    else
        tap 1 "$2"
    fi
}

finds() { # variant options what
    search "-D$1 $2" -O0 # an error shows after a few states: compiling is what takes time
    if grep -q 'errors: 1' out && grep -q 'assertion violated' out; then
        tap 0 "found: $3"
    else
        tap 1 "not found: $3 ($1)"
    fi
}

compiler=-O1
holds "-DATTEMPTS=3 -DREADERS=0 -DCOLLECTORS=0" "three attempts, a kill, a power cut"
holds "-DATTEMPTS=2 -DREADERS=1 -DCOLLECTORS=1" "two attempts, a reader, a collector, a kill, a power cut"
holds "-DATTEMPTS=2 -DREADERS=1 -DCOLLECTORS=2 -DPOWER_CUTS=0" "two attempts, a reader, two collectors, a kill"
holds "-DATTEMPTS=2 -DREADERS=0 -DCOLLECTORS=1 -DHOLLOWS=1" "two attempts that may be hollow, a collector, a kill, a power cut"
holds "-DATTEMPTS=2 -DREADERS=0 -DCOLLECTORS=0 -DHOLLOWS=1 -DRECOLLECTORS=1" "two such attempts where another was dropped, its collector, a kill, a power cut"
if [ "${1:-}" = --full ]; then
    compiler="-O3 -DCOLLAPSE"
    holds "-DATTEMPTS=3 -DREADERS=0 -DCOLLECTORS=0 -DHOLLOWS=1 -DPOWER_CUTS=0" "three attempts that may be hollow, a kill"
    holds "-DATTEMPTS=3 -DREADERS=1 -DCOLLECTORS=1 -DPOWER_CUTS=0" "three attempts, a reader, a collector, a kill"
    holds "-DATTEMPTS=3 -DREADERS=0 -DCOLLECTORS=1 -DKILLS=0" "three attempts, a collector, a power cut"
fi

small="-DATTEMPTS=2 -DREADERS=0"
finds DROP_SHARD_FSYNC "$small" "a shard that is not fsynced"
finds DROP_MANIFEST_FSYNC "$small" "a manifest that is not fsynced"
finds DROP_DIR_FSYNC "$small" "a directory that is not fsynced after the link"
finds FORGET_SETTLE "$small" "an artefact taken for committed that nobody made durable"
finds RENAME_PUBLISHES "$small" "publication by rename instead of link"
finds ADOPT_BY_RENAME "$small" "adoption by rename instead of link"
finds ADOPT_UNCHECKED "$small" "adoption without a look at the digest"
finds LOSER_TIDIES "$small" "tidying by a loser"
finds COLLECT_BEFORE_MARKER "$small" "collection before the marker"
finds DROP_MARKER_FSYNC "$small" "a marker that is not fsynced"
finds KEEP_UNSETTLED "$small" "older generations gone before the kept one is durable"
finds NO_SECOND_LOOK_FOR_PINS "-DATTEMPTS=1 -DREADERS=1" "no look for pins after the marker"
finds FINISH_WITHOUT_LOOK "-DATTEMPTS=1 -DREADERS=1" "another's collection finished without a look for pins"
finds MARKER_TAKEN_BACK "-DATTEMPTS=1 -DREADERS=1 -DCOLLECTORS=2 -DPOWER_CUTS=0" "a marker taken back while another collects"
finds HOLLOW_BY_MARKER "$small -DHOLLOWS=1 -DCOLLECTORS=0" "a hollow artefact that only a marker tells"
finds HOLLOW_LOSER_COLLECTS "$small -DHOLLOWS=1 -DCOLLECTORS=0" "a hollow attempt that collects the data of the one that was first"
finds MARKER_TAKEN_AWAY "$small -DRECOLLECTORS=1 -DCOLLECTORS=0" "a marker taken away by an attempt that begins"
finds MARKER_OF_ANY "$small -DRECOLLECTORS=1 -DCOLLECTORS=0" "a marker that counts beside another manifest than its own"
echo "1..$n"
[ "$failed" = 0 ]
