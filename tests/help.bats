# Every verb explains itself, and what is no verb is refused with the nearest one.
load lib

wanted="run init status amend verify gc digest inspect import export logprobs generate tokenize detokenize grade eval replay bench doctor"

setup() {
    verbs=$("$cairn" help | awk '/^  [a-z]/ && $1 != "cairn" && $1 != "help" { print $1 }')
}

@test "every verb has a page that fits a screen and ends with two examples of itself" {
    for v in $verbs; do
        is 0 "$cairn" "$v" --help
        says "Examples:"
        [ "$(printf '%s\n' "$output" | awk 'length > 79' | wc -l)" = 0 ] || { echo "$v: too wide"; echo "$output"; return 1; }
        [ "${#lines[@]}" -le 50 ]
        tail=$(printf '%s\n' "$output" | sed -n '/^Examples:/,$p')
        # Two lines with two blanks in front; further ones are the continuation of a long command.
        [ "$(printf '%s\n' "$tail" | grep '^  [^ ]' | grep -c "cairn $v")" = 2 ] || { echo "$v:"; echo "$tail"; return 1; }
        [ "$(printf '%s\n' "$tail" | grep -c '^  [^ ]')" = 2 ] || { echo "$v:"; echo "$tail"; return 1; }
        [ "$(printf '%s\n' "$tail" | grep -c .)" -le 5 ] || { echo "$v:"; echo "$tail"; return 1; }
    done
}

@test "cairn help lists every verb, cairn help VERB is its page" {
    is 0 "$cairn" help
    for v in $wanted; do
        printf '%s\n' "$output" | grep -q "^  $v " || { echo "$v is not listed"; return 1; }
    done
    page=$("$cairn" run --help)
    is 0 "$cairn" help run
    [ "$output" = "$page" ]
    is 0 "$cairn" --help
}

@test "an unknown verb is 64 and names the nearest" {
    is 64 "$cairn" statsu
    says 'did you mean "status"'
    is 64 "$cairn"
    is 64 "$cairn" help nothing-like-it
}

@test "an unknown option and missing words are 64" {
    for v in run init status amend verify gc digest inspect import export logprobs generate tokenize detokenize grade eval replay; do
        is 64 "$cairn" "$v" --no-such-option
        is 64 "$cairn" "$v"
    done
}

@test "the version is printed" {
    is 0 "$cairn" --version
    says "cairn "
}

@test "the stages have pages, too, and want a run and a step" {
    for s in rollout score train sync; do
        is 0 "$build/bin/cairn-$s" --help
        says "Examples:"
        is 64 "$build/bin/cairn-$s"
        is 69 "$build/bin/cairn-$s" "$BATS_TEST_TMPDIR/none" --step 1
    done
}

@test "make help lists the goals" {
    is 0 make -s -C "$root" help
    says "make demo" "make test" "make bench" "Example:"
}

@test "results that cannot be written are an error" {
    [ -e /dev/full ] || skip "no /dev/full"
    for v in doctor "init $micro --print"; do
        # shellcheck disable=SC2086
        run sh -c "exec '$cairn' $v >/dev/full"
        [ "$status" = 73 ] || [ "$status" = 74 ] || { echo "$v: $status"; return 1; }
    done
}

@test "cairn doctor finds this build fit, in words and as JSON" {
    is 0 "$cairn" doctor "$BATS_TEST_TMPDIR"
    says "CPU back-end" "hard links"
    is 0 "$cairn" doctor --json
    says '"fit":true'
    [ -z "$(ls -A "$BATS_TEST_TMPDIR")" ]
}
