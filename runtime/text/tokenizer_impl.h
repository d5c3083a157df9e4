/* tokenizer_impl.h - what struct cairn_tokenizer is made of. For tokenizer.c and tokenizer_file.c only. */
#ifndef CAIRN_TEXT_TOKENIZER_IMPL_H
#define CAIRN_TEXT_TOKENIZER_IMPL_H

#include <pthread.h>

#include "text/added.h"
#include "text/bpe.h"
#include "text/split.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

struct scratch; /* tokenizer.c */

struct cairn_tokenizer {
    struct cairn_vocab vocab;
    struct cairn_bpe bpe;
    struct cairn_added added;
    struct cairn_split *split;
    int nfc;
    pthread_mutex_t lock; /* of pool */
    struct scratch *pool; /* unused ones, a list */
};

#endif
