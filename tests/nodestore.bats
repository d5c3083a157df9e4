# sync.node_store: the base stays on the node; the same bits with and without, whatever happens to the store.
load lib

setup_file() {
    load lib
    adapted "$BATS_FILE_TMPDIR/without"
    "$cairn" digest "$BATS_FILE_TMPDIR/without" >"$BATS_FILE_TMPDIR/digest"
}

setup() {
    store=$BATS_TEST_TMPDIR/store
    objects=$store/cairn-$(id -u)
    dir=$BATS_TEST_TMPDIR/run
}

adapted() { # DIR [key=value...]: a run that trains an adapter
    local dir=$1
    shift
    "$cairn" run "$micro" --run "$dir" 'model.adapter={rank: 4}' run.steps=1 "$@" 2>&1
}

same() {
    "$cairn" digest "$1" | diff "$BATS_FILE_TMPDIR/digest" -
}

@test "the first process leaves the base there, the others map it; status lists it, gc removes what is old" {
    is 0 adapted "$dir" "sync.node_store={path: $store}"
    says "read and kept in $store" "taken from $store"
    [ "$(grep -c "read and kept" <<<"$output")" = 1 ]
    same "$dir"
    [ "$(ls "$objects" | wc -l)" = 1 ]
    is 0 "$cairn" status "$dir"
    says "node store $store" "1 objects" "kept"
    "$cairn" status "$dir" --json | jq -e '.node_store.objects | length == 1 and (.[0].state == "kept") and (.[0].bytes > 100000)'
    is 0 "$cairn" gc "$dir"
    [ "$(ls "$objects" | wc -l)" = 1 ]
    touch -d "2 days ago" "$objects"/*
    is 0 "$cairn" status "$dir"
    says expired
    is 0 "$cairn" gc --dry-run "$dir"
    says "would free an expired object of the node store"
    is 0 "$cairn" gc "$dir"
    says "freed an expired object of the node store"
    [ "$(ls "$objects" | wc -l)" = 0 ]
}

@test "a damaged object is refused in one line and made again" {
    adapted "$dir" "sync.node_store={path: $store}"
    flip "$objects"/* 70000
    is 0 adapted "$dir-2" "sync.node_store={path: $store}"
    says "is damaged; the base is read as without it" "read and kept in $store"
    [ "$(grep -c "is damaged" <<<"$output")" = 1 ]
    same "$dir-2"
}

@test "a full device and a folder that is open to others cost one line a process" {
    is 0 adapted "$dir" "sync.node_store={path: $store, max: 0.00001}"
    says "do not fit into" "the base is read as without it"
    same "$dir"
    chmod 777 "$objects"
    is 0 adapted "$dir-2" "sync.node_store={path: $store}"
    says "is open to others (mode 777); the base is read as without it"
    same "$dir-2"
}

@test "the guard back-end takes a copy of what lies there, and refuses what is damaged on its way" {
    is 0 adapted "$dir" kernels.backend=guard "sync.node_store={path: $store}"
    says "read and kept in $store" "taken from $store"
    same "$dir"
    flip "$objects"/* 70000
    is 0 adapted "$dir-2" kernels.backend=guard "sync.node_store={path: $store}"
    says "is damaged; the base is read as without it" "read and kept in $store"
    [ "$(grep -c "is damaged" <<<"$output")" = 1 ]
    same "$dir-2"
}
