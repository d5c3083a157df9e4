/* pack.c - order of groups and packing of sequences (pack.h). */
#include "stages/train/pack.h"

#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "base/planted.h"

void cairn_pack_shuffle(uint64_t seed, int64_t step, int64_t groups, int64_t *order)
{
    const struct cairn_philox_key key = {.seed = seed, .purpose = CAIRN_PURPOSE_SHUFFLE, .step = (uint32_t)step};

    cairn_philox_permutation(&key, groups, order);
}

enum cairn_status cairn_micro_create(struct cairn_micro *m, int64_t capacity, int max_seqs, struct cairn_error *err)
{
    size_t rows = (size_t)capacity, seqs = (size_t)max_seqs;

    *m = (struct cairn_micro){.capacity = capacity, .max_seqs = max_seqs};
    m->id = calloc(rows, sizeof *m->id);
    m->pos = calloc(rows, sizeof *m->pos);
    m->seq = calloc(rows, sizeof *m->seq);
    m->target = calloc(rows, sizeof *m->target);
    m->start = calloc(seqs, sizeof *m->start);
    m->row_of = calloc(seqs, sizeof *m->row_of);
    m->member = calloc(seqs, sizeof *m->member);
    if (m->id && m->pos && m->seq && m->target && m->start && m->row_of && m->member)
        return CAIRN_OK;
    cairn_micro_free(m);
    return CAIRN_NOMEM(err);
}

void cairn_micro_free(struct cairn_micro *m)
{
    free(m->id);
    free(m->pos);
    free(m->seq);
    free(m->target);
    free(m->start);
    free(m->row_of);
    free(m->member);
    memset(m, 0, sizeof *m);
}

static void micro_add(struct cairn_micro *m, const struct cairn_sequence *s)
{
    int64_t rows = s->length - 1, at = m->rows;

    m->start[m->nseq] = (int32_t)at;
    m->row_of[m->nseq] = at + s->prompt - 1;
    m->member[m->nseq] = s;
    for (int64_t i = 0; i < rows; i++) {
        m->id[at + i] = s->tokens[i];
        m->pos[at + i] = (int32_t)i;
        m->seq[at + i] = m->nseq;
        m->target[at + i] = i + 1 >= s->prompt ? s->tokens[cairn_planted("label-not-shifted") ? i : i + 1] : -1;
    }
    m->rows += rows;
    m->nseq++;
}

int cairn_micro_fill(struct cairn_micro *m, const struct cairn_sequence *s, int64_t n, int64_t *next, int64_t limit)
{
    m->rows = 0;
    m->nseq = 0;
    for (; *next < n && m->nseq < m->max_seqs; ++*next) {
        int64_t rows = s[*next].length - 1;

        if (rows < 1 || s[*next].length <= s[*next].prompt)
            continue; /* no response token: nothing to predict */
        if (m->nseq && m->rows + rows > limit)
            break;
        micro_add(m, &s[*next]);
    }
    return m->nseq > 0;
}
