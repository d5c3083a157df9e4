# lib.bash - what the bats files share. They are run from the root of the clone, as prove does.
root=$(cd "$BATS_TEST_DIRNAME/.." && pwd)
build=${CAIRN_BUILD:-build}
case $build in
/*) ;;
*) build=$root/$build ;;
esac
cairn=$build/bin/cairn
micro=$root/tests/fixtures/micro.yaml
export root build cairn micro

# is CODE COMMAND...: runs it, wants that exit code; $output holds stdout and stderr.
is() {
    local want=$1
    shift
    run "$@"
    if [ "$status" != "$want" ]; then
        echo "exit code $status, expected $want: $*"
        echo "$output"
        return 1
    fi
}

# says TEXT...: each stands in $output.
says() {
    local text
    for text; do
        case $output in
        *"$text"*) ;;
        *)
            echo "does not say \"$text\":"
            echo "$output"
            return 1
            ;;
        esac
    done
}

# micro_run DIR [key=value...]: the whole chain of the micro recipe.
micro_run() {
    local dir=$1
    shift
    "$cairn" run "$micro" --run "$dir" --quiet "$@"
}

# flip FILE OFFSET: turns the lowest bit of one byte over.
flip() {
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1" | tr -d ' ')
    printf "\\$(printf %03o $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
