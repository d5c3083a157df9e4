/* commit.pml - the commit protocol of ckpt/ as a model for spin: attempts on one artefact, readers, a collector, a disk that may forget.
 *
 * The artefact is generation 2 of something; generation 1 is there, whole and durable, and goes when 2 is valid (keep = 1). Steps carry the names
 * of the C functions (ckpt/attempt.c, adopt.c, publish.c, retention.c, reader.c); each `step` is what a process does between two moments at which
 * another one may act, it may be killed, or the power may go. A stall is that others act; a restart is the next attempt.
 *
 * The disk: a name or a file's bytes that were not fsynced may or may not be there after the power went, each for itself. What every
 * attempt writes is different on purpose (its epoch), so that nothing mixed goes unseen.
 *
 * HOLLOWS: attempts may be hollow, collected from the first (retention.h). RECOLLECTORS: generation 2 was made, collected and dropped before, its
 * marker is left, and these collect what is made in its place.
 *
 * Claims (checked by assert and by spin's search for dead ends):
 *   one publication    MANIFEST.json is never replaced; what an attempt told to be committed is there for ever, the same
 *   no torn, no mixed  a reader of a committed generation finds the bytes that its manifest names, or the marker
 *   kept               what was committed with its data has them until a collector comes for it
 *   never zero valid   generation 1 or generation 2 is whole at any moment, and after any loss of power
 *   progress           the attempt with the highest epoch, if nothing happens to it, leaves a committed generation 2
 *
 * Variants (-D...) break one step each; tests/model/commit.t expects spin to find an error in every one of them:
 *   DROP_MANIFEST_FSYNC DROP_DIR_FSYNC DROP_SHARD_FSYNC RENAME_PUBLISHES COLLECT_BEFORE_MARKER DROP_MARKER_FSYNC NO_SECOND_LOOK_FOR_PINS
 *   FINISH_WITHOUT_LOOK MARKER_TAKEN_BACK (two collectors) KEEP_UNSETTLED ADOPT_BY_RENAME ADOPT_UNCHECKED LOSER_TIDIES FORGET_SETTLE
 *   HOLLOW_BY_MARKER HOLLOW_LOSER_COLLECTS (hollow attempts) MARKER_TAKEN_AWAY MARKER_OF_ANY (recollectors)
 */
#ifndef ATTEMPTS
#define ATTEMPTS 3
#endif
#ifndef READERS
#define READERS 2
#endif
#ifndef COLLECTORS
#define COLLECTORS 1
#endif
#ifndef HOLLOWS
#define HOLLOWS 0
#endif
#ifndef RECOLLECTORS
#define RECOLLECTORS 0
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef POWER_CUTS
#define POWER_CUTS 1
#endif
#define N (ATTEMPTS + 1)

/* --- the disk: index e is the attempt's epoch, 0 nothing ----------------------------------------------------------------- */

bit epoch_file[N];          /* epoch/e */
byte shard[N];              /* a<e>/rank0000.h5: number of the inode, by the epoch that wrote it; 0: no such name */
byte shard_name[N];         /* what of that is durable */
byte entry[N];              /* a<e>/rank0000.json: the inode it vouches for; 0: none */
byte entry_name[N];
#define PART 1
#define FULL 2
byte bytes[N];              /* of inode e */
bit bytes_synced[N];
bit manifest_tmp[N];        /* .MANIFEST.e */
bit manifest_bytes[N];      /* its bytes are on the disk */
byte names[N];              /* the inode that it names */
byte manifest;              /* MANIFEST.json: hard link to .MANIFEST.<this>; 0: not committed */
byte manifest_name;         /* what of that is durable */
bit torn;                   /* its bytes were lost */
bit hollow[N];              /* what .MANIFEST.e says */
#define DROPPED N
byte new_marker = (RECOLLECTORS -> DROPPED : 0); /* generation 2: COLLECTED, by the manifest that it names; 0: none */

bit old_shard = 1;          /* generation 1: a1/rank0000.h5 */
bit old_shard_gone;         /* and that is durable */
bit marker;                 /* generation 1: COLLECTED */
bit marker_name;
byte pins;                  /* living pins on generation 1 */

/* --- what happened --------------------------------------------------------------------------------------------------------- */

byte boot;                  /* power cuts so far */
byte kills;                 /* of processes */
byte told;                  /* the epoch that somebody was told to be committed */
bit collected;              /* generation 2, by a collector */
bit dead[N];                /* the process that took this epoch was killed, or lost its power */
byte begun, ended;          /* attempts that have */

#ifdef HOLLOW_BY_MARKER /* marked ahead of the commit, and whoever begins where nothing is committed takes the mark away */
#define MARKER_TAKEN_AWAY
#define MARK_AHEAD if :: hollow[e] && !manifest -> new_marker = e :: else fi
#define MARK_AGAIN new_marker = manifest
#define SAYS_HOLLOW(e) false
#else
#define MARK_AHEAD skip
#define MARK_AGAIN skip
#define SAYS_HOLLOW(e) hollow[e]
#endif
#ifdef MARKER_TAKEN_AWAY
#define MARKER_OF_ANY
#define UNMARK_STEP step(new_marker = 0);
#else
#define UNMARK_STEP
#endif
#ifdef MARKER_OF_ANY
#define MARKED_NEW (new_marker)
#else
#define MARKED_NEW (new_marker == manifest)
#endif

#define OLD_VALID (old_shard && !marker)
#define NEW_COLLECTED (manifest && !torn && (SAYS_HOLLOW(manifest) || MARKED_NEW)) /* cairn_artefact_collected_look */
#define NEW_VALID (manifest && !torn && shard[manifest] && shard[manifest] == names[manifest] && bytes[names[manifest]] == FULL)

/* One step: what others cannot come between. Or the process is killed before it, or finds that the power was gone. */
#define step(x)                                    \
    atomic {                                       \
        if                                         \
        :: boot == mine -> x                       \
        :: boot != mine -> goto gone               \
        :: kills < KILLS -> kills++; goto gone     \
        fi                                         \
    }

/* --- ckpt/attempt.c, adopt.c, publish.c ---------------------------------------------------------------------------------------------------------- */

/* cairn_attempt_check: is there a higher epoch? */
inline cairn_attempt_check() {
    i = e + 1;
    do
    :: i < N && epoch_file[i] -> i = 0; goto fenced
    :: i < N && !epoch_file[i] -> i++
    :: i >= N -> break
    od;
    i = 0
}

#ifdef ADOPT_UNCHECKED /* an entry is trusted, and was written before its shard was synced */
#define DIGEST_HOLDS(x) true
#define ENTRY_TOO_EARLY entry[e] = e; sync_attempt_dir()
#else
#define DIGEST_HOLDS(x) (bytes[x] == FULL)
#define ENTRY_TOO_EARLY skip
#endif
#ifdef ADOPT_BY_RENAME
#define BRING_TAKES_AWAY shard[from] = 0; entry[from] = 0
#else
#define BRING_TAKES_AWAY skip
#endif
#ifdef DROP_SHARD_FSYNC
#define SHARD_FSYNC skip
#else
#define SHARD_FSYNC bytes_synced[shard[e]] = 1
#endif
#ifdef DROP_MANIFEST_FSYNC
#define MANIFEST_FSYNC manifest_bytes[e] = 0
#else
#define MANIFEST_FSYNC manifest_bytes[e] = 1
#endif
#ifdef RENAME_PUBLISHES
#define MAY_PUBLISH true
#else
#define MAY_PUBLISH (!manifest) /* link(2) fails if the name exists */
#endif
#ifdef DROP_DIR_FSYNC
#define SETTLE_FSYNC skip
#else
#ifdef FORGET_SETTLE
#define SETTLE_FSYNC if :: e -> cairn_artefact_durable() :: else fi
#else
#define SETTLE_FSYNC cairn_artefact_durable()
#endif
#endif

#ifdef LOSER_TIDIES
#define YIELD won = e; i = 1; next_left(); goto tidying
#else
#define YIELD goto yielded
#endif
#ifdef HOLLOW_LOSER_COLLECTS
#define COLLECTS true
#define MARK_UNLESS_COLLECTED if :: !NEW_COLLECTED -> new_marker = manifest :: else fi
#else
#ifdef HOLLOW_BY_MARKER
#define COLLECTS true
#define MARK_UNLESS_COLLECTED MARK_AGAIN
#else
#define COLLECTS NEW_COLLECTED
#define MARK_UNLESS_COLLECTED skip
#endif
#endif

/* What a stage does behind the commit of its hollow artefact, whoever was first with it: cairn_artefact_collect, if that one is hollow. */
inline collect_hollow() {
    if
    :: hollow[e] && COLLECTS -> MARK_UNLESS_COLLECTED; shard[manifest] = 0
    :: else
    fi
}

/* The newest finished shard of another attempt, its digest checked; 0: none. A digest that held goes on to hold: that the name is gone
 * by the time of the link is the same as not having found it. */
inline cairn_attempt_adopt() {
    i = 1;
    do
    :: i < N ->
        if
        :: i != e && entry[i] && shard[i] == entry[i] && DIGEST_HOLDS(shard[i]) -> from = i
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0
}

/* A second name for the same bytes. */
inline bring() {
    shard[e] = shard[from];
    BRING_TAKES_AWAY;
    from = 0
}

/* cairn_dir_sync of a<e>. */
inline sync_attempt_dir() {
    shard_name[e] = shard[e];
    entry_name[e] = entry[e]
}

/* tidy(root, won), one attempt after the other: a<i> and .MANIFEST.<i> of the outranked and of the dead, then their epoch files. */
#define OVER (i < won || (i > won && dead[i]))
#define LEFT ((OVER && (shard[i] || entry[i] || manifest_tmp[i] || epoch_file[i])) || (i == won && manifest_tmp[i]))
inline next_left() {
    do
    :: i < N && !LEFT -> i++
    :: else -> break
    od
}
inline tidy() {
    do
    :: step(if
            :: i >= N -> i = 0; won = 0; break
            :: else ->
                manifest_tmp[i] = 0;
                if :: OVER -> shard[i] = 0; entry[i] = 0; epoch_file[i] = 0 :: else fi;
                i++;
                next_left()
            fi)
    od
}

/* fsync of the artefact's directory and of the one that holds it. */
inline cairn_artefact_durable() {
    manifest_name = manifest
}

inline tell_committed() {
    assert(manifest && (!told || told == manifest));
    told = manifest
}

/* Steps that nobody else can tell apart are one (a write and its fsync by the same process, two looks in a row). */
proctype attempt(byte nth) {
    byte mine, e, from, i, won;

    atomic {
        begun == nth -> begun++; mine = boot; /* they are all alike: the first to begin is the first */
        /* cairn_artefact_committed; list_numbers(epochs) */
         if
         :: manifest -> goto cairn_artefact_settle
         :: else
         fi;
         i = 1;
         do
         :: i < N -> if :: epoch_file[i] -> e = i :: else fi; i++
         :: else -> break
         od;
         i = 0
    };
    UNMARK_STEP
    do /* take_epoch: create_whole until a name was free; cairn_dir_sync(epochs), mkdir a<e>, cairn_dir_sync(root) */
    :: step(e++;
            assert(e < N);
            if
            :: !epoch_file[e] -> epoch_file[e] = 1; dead[e] = 0; break
            :: else
            fi)
    od;
    step(if
         :: HOLLOWS -> hollow[e] = 1; shard[e] = e /* cairn_attempt_shard, cairn_shard_tell */
         :: cairn_attempt_adopt();
            if
            :: from -> bring()
            :: else -> shard[e] = e; bytes[e] = FULL; bytes_synced[e] = 0; ENTRY_TOO_EARLY /* cairn_attempt_shard, cairn_shard_write */
            fi
         fi);
    step(/* cairn_shard_finish: fsync (what was adopted is synced already). record: the entry, fsynced, cairn_dir_sync(a<e>). The directory may
          * have been tidied away: or_fenced */
         if
         :: shard[e] && !hollow[e] -> SHARD_FSYNC; entry[e] = shard[e]; sync_attempt_dir()
         :: shard[e] && hollow[e] -> MARK_AHEAD
         :: else -> goto fenced
         fi);
    step(/* cairn_attempt_commit: cairn_attempt_check, shards_there, cairn_file_create(.MANIFEST.e), cairn_attempt_check */
         cairn_attempt_check();
         if
         :: shard[e] -> names[e] = shard[e]; manifest_tmp[e] = 1; MANIFEST_FSYNC
         :: else -> goto fenced
         fi);
    step(/* publish */
         if
         :: !manifest_tmp[e] -> goto fenced                 /* tidied away */
         :: manifest_tmp[e] && MAY_PUBLISH -> assert(!manifest); manifest = e
         :: manifest_tmp[e] && !(MAY_PUBLISH) -> YIELD      /* yield_to: ours is always another content */
         fi);
cairn_artefact_settle:
    step(SETTLE_FSYNC; won = manifest; i = 1; next_left());
tidying:
    tidy();
    step(collect_hollow());
    step(tell_committed());
    goto over;
yielded:
    step(collect_hollow());
fenced:
    goto over;
gone:
    atomic { if :: e -> dead[e] = 1 :: else fi }
over:
    atomic { ended++; mine = 0; e = 0; from = 0; i = 0; won = 0 }
}

/* --- ckpt/reader.c, ckpt/retention.c -------------------------------------------------------------------------------------- */

/* Reads generation 1 under a pin. (Who reads without one, and readers of generation 2, change nothing: `always` below is what they see.) */
proctype reader() {
    byte mine;
    bit pin;

    atomic { mine = boot };
    step(pins++; pin = 1);      /* cairn_artefact_pin: the pin first, ... */
    step(if                     /* ... then a look for the marker */
         :: marker -> pins--; pin = 0; goto over
         :: else
         fi);
    step(assert(old_shard); pins--; pin = 0); /* cairn_reader_open, cairn_reader_box, cairn_artefact_unpin */
    goto over;
gone:
    atomic { if :: pin && boot == mine -> pins-- :: else fi } /* the pin of a dead process counts no more */
over:
    atomic { mine = 0; pin = 0 }
}

/* cairn_retention_apply with keep = 1: generation 1 goes if generation 2 is valid. Killed, it starts again. */
#ifdef KEEP_UNSETTLED
#define KEPT_FSYNC skip
#else
#define KEPT_FSYNC cairn_artefact_durable()
#endif
#ifdef COLLECT_BEFORE_MARKER
#define TOO_EARLY old_shard = 0
#else
#define TOO_EARLY skip
#endif
#ifdef NO_SECOND_LOOK_FOR_PINS
#define HELD false
#else
#define HELD (pins > 0)
#endif
#ifdef FINISH_WITHOUT_LOOK
#define FINISH goto remove_data
#else
#define FINISH goto second_look
#endif
#ifdef MARKER_TAKEN_BACK
#define GIVE_UP if :: own -> marker = 0; marker_name = 0 :: else fi; goto over
#else
#define GIVE_UP goto over
#endif
#ifdef DROP_MARKER_FSYNC
#define MARKER_FSYNC skip
#else
#define MARKER_FSYNC marker_name = marker
#endif
proctype collector() {
    byte mine;
    bit own;

again:
    atomic { mine = boot; own = 0 };
    step(if
         :: marker -> FINISH                    /* of one that died, or is at work */
         :: !marker && NEW_VALID && !pins       /* valid; pinned_by_the_living */
         :: !marker && (!NEW_VALID || pins) -> goto over
         fi);
    step(KEPT_FSYNC; TOO_EARLY);                /* cairn_artefact_durable of what is kept, before anything goes */
    step(if :: !marker -> marker = 1; own = 1 :: else fi); /* cairn_artefact_mark: rename ... */
    step(marker_name = 1);                      /* ... and cairn_dir_sync */
second_look:
    step(if :: HELD -> GIVE_UP :: else fi);     /* pinned_by_the_living */
remove_data:
    step(MARKER_FSYNC);                         /* cairn_dir_sync first, whoever put the marker down */
    step(old_shard = 0);                        /* cairn_tree_remove; whether that is durable does not matter */
    goto over;
gone:
    goto again;
over:
    atomic { mine = 0; own = 0 }
}

/* Another one, for generation 2: cairn_artefact_collect. */
proctype recollector() {
    byte mine;

again:
    atomic { mine = boot };
    step(if :: !manifest || torn -> goto over :: else fi);
    step(if :: !NEW_COLLECTED -> new_marker = manifest :: else fi; collected = 1); /* cairn_artefact_mark */
    step(shard[manifest] = 0);                                                      /* remove_data */
    goto over;
gone:
    goto again;
over:
    atomic { mine = 0 }
}

/* --- faults ------------------------------------------------------------------------------------------------------------------ */

#define maybe(lost, x) if :: lost -> if :: x :: skip fi :: else fi

/* The power goes: everybody is gone, and of what was not synced each thing may be there or not. */
inline power_cut() {
    boot++;
    pins = 0;
    k = 1;
    do
    :: k < N ->
        maybe(shard[k] != shard_name[k], shard[k] = shard_name[k]);
        shard_name[k] = shard[k];
        maybe(entry[k] != entry_name[k], entry[k] = entry_name[k]);
        entry_name[k] = entry[k];
        maybe(bytes[k] == FULL && !bytes_synced[k], bytes[k] = PART);
        bytes_synced[k] = 1;
        manifest_tmp[k] = 0; /* nobody looks at one of a dead attempt */
        dead[k] = epoch_file[k];
        k++
    :: else -> break
    od;
    k = 0;
    maybe(manifest != manifest_name, manifest = manifest_name);
    manifest_name = manifest;
    maybe(manifest && !manifest_bytes[manifest], torn = 1);
    maybe(marker != marker_name, marker = marker_name);
    marker_name = marker;
    maybe(!old_shard && !old_shard_gone, old_shard = 1);
    old_shard_gone = !old_shard
}

init {
    byte k = 0;

    atomic {
        do :: k < ATTEMPTS -> run attempt(k); k++ :: else -> break od;
        k = 0;
        do :: k < READERS -> run reader(); k++ :: else -> break od;
        k = 0;
        do :: k < COLLECTORS -> run collector(); k++ :: else -> break od;
        k = 0;
        do :: k < RECOLLECTORS -> run recollector(); k++ :: else -> break od;
        k = 0
    }
end:
    do
    :: atomic { boot < POWER_CUTS -> power_cut() }
    od
}

/* --- claims -------------------------------------------------------------------------------------------------------------------- */

#define WHOLE (!manifest || NEW_VALID || NEW_COLLECTED) /* cairn_manifest_load, then cairn_reader_box at any later moment, or the reason why not */
#define KEPT (!NEW_COLLECTED || hollow[manifest] || collected)
#define MARKED (old_shard || marker)            /* the bytes, or the reason why not */
#define FOR_EVER (!told || manifest == told)
#define SOME_VALID (OLD_VALID || NEW_VALID)

active proctype always() {
end:
    atomic {
        !(WHOLE && KEPT && MARKED && FOR_EVER && SOME_VALID) ->
        assert(WHOLE); assert(KEPT); assert(MARKED); assert(FOR_EVER); assert(SOME_VALID)
    }
}

active proctype progress_made() {
    byte k = N - 1;
end:
    atomic {
        ended == ATTEMPTS ->
        do
        :: k && !epoch_file[k] -> k--
        :: else -> break
        od;
        assert(manifest || !k || dead[k]);
        k = 0
    }
}
