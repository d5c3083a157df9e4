# tools/bootstrap: quick and silent when all is there, a list and 72 when it may not install.
load lib

@test "nothing missing: silent, 0, nothing listed" {
    is 0 "$root/tools/bootstrap"
    [ -z "$output" ]
    is 0 "$root/tools/bootstrap" --list
    [ -z "$output" ]
    is 64 "$root/tools/bootstrap" --nonsense
}

# A PATH without pkg-config and bats, with an `id` that says who calls.
bare_path() { # UID
    bare=$BATS_TEST_TMPDIR/bin
    mkdir -p "$bare"
    for p in sh make cc ar mpirun h5dump prove env; do
        ln -sf "$(command -v "$p")" "$bare/$p"
    done
    printf '#!/bin/sh\necho %s\n' "$1" >"$bare/id"
    printf '#!/bin/sh\necho "apt-get $*: not here" >&2\nexit 100\n' >"$bare/apt-get" # never the machine's own
    chmod +x "$bare/id" "$bare/apt-get"
}

@test "without root the packages are named and it stops with 72" {
    bare_path 1000
    is 72 env -i PATH="$bare" sh "$root/tools/bootstrap"
    says "not root" "pkg-config" "bats" "libhdf5-dev"
    is 0 env -i PATH="$bare" sh "$root/tools/bootstrap" --list
    says "pkg-config libhdf5-dev"
}

@test "without apt-get, too" {
    bare_path 0
    rm "$bare/apt-get"
    is 72 env -i PATH="$bare" sh "$root/tools/bootstrap"
    says "no apt-get" "bats"
}

@test "as root: installs what is missing, after fetching the lists when the first try fails" {
    bare_path 0
    rm "$bare/apt-get"
    cat >"$bare/apt-get" <<SH
#!/bin/sh
echo "\$*" >>$BATS_TEST_TMPDIR/calls
case \$1 in
update) >$BATS_TEST_TMPDIR/updated ;;
install)
    [ -e $BATS_TEST_TMPDIR/updated ] || exit 100
    for p in pkg-config bats spin; do printf '#!/bin/sh\nexit 0\n' >$bare/\$p; /bin/chmod +x $bare/\$p; done
    ;;
esac
SH
    chmod +x "$bare/apt-get"
    is 0 env -i PATH="$bare" sh "$root/tools/bootstrap"
    [ "$(grep -c '^install -y' "$BATS_TEST_TMPDIR/calls")" = 2 ]
    [ "$(grep -c '^update' "$BATS_TEST_TMPDIR/calls")" = 1 ]
    is 0 env -i PATH="$bare" sh "$root/tools/bootstrap"
}

@test "tally counts what ran, what failed, and what never ran" {
    t=$BATS_TEST_TMPDIR/tap
    mkdir "$t"
    printf '1..2\nok 1 - a\nok 2 - b # SKIP no GPU\n' >"$t/a.tap"
    printf '1..3\nok 1 - a\nnot ok 2 - b\n' >"$t/b.tap"
    printf '1..1\nok 1 - a\n' >"$t/c.tap"
    printf '' >"$t/d.tap"
    for f in a b c d; do echo 0 >"$t/$f.rc"; done
    echo 139 >"$t/c.rc"
    is 1 "$root/tests/tally" "$t"
    says "1 skipped" "failed: b: 2" "failed: c: 1 (exit code 139)" "failed: d: 1"
    [ "${lines[-1]}" = "3 passed, 4 failed" ]
}
