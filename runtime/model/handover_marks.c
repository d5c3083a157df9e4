/* handover_marks.c - when what happened in a handover, on the host and on the device: for measurements
 * (tests/gpu/bench_handover.c), off unless asked for.
 *
 * A mark on a stream is an event that keeps the time. The first of them is recorded on an idle stream while the host looks at its
 * clock, so that both clocks are one to within the few microseconds that such a record takes.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "model/handover_impl.h"

struct mark {
    struct cairn_handover_mark m;
    struct cairn_event event;
};

struct cairn_hand_marks {
    struct cairn_event base;
    double base_s;
    int n, room;
    struct mark mark[];
};

enum cairn_status cairn_hand_marks_open(struct cairn_handover *h, struct cairn_error *err)
{
    struct cairn_device *dev = h->o.compute->dev;
    enum cairn_status st = CAIRN_OK;

    if (h->o.marks < 1)
        return CAIRN_OK;
    if (!(h->marks = calloc(1, sizeof *h->marks + (size_t)h->o.marks * sizeof *h->marks->mark)))
        return CAIRN_NOMEM(err);
    h->marks->room = h->o.marks;
    if (!cairn_event_times(dev))
        return CAIRN_OK;
    TRY(cairn_event_create_timed(dev, &h->marks->base, err));
    for (int i = 0; i < h->marks->room; i++)
        TRY(cairn_event_create_timed(dev, &h->marks->mark[i].event, err));
out:
    return st;
}

void cairn_hand_marks_close(struct cairn_handover *h)
{
    if (!h->marks)
        return;
    cairn_event_destroy(&h->marks->base);
    for (int i = 0; i < h->marks->room; i++)
        cairn_event_destroy(&h->marks->mark[i].event);
    free(h->marks);
    h->marks = NULL;
}

void cairn_hand_marks_begin(struct cairn_handover *h, struct cairn_stream *stream)
{
    if (!h->marks)
        return;
    h->marks->n = 0;
    if (h->marks->base.dev)
        cairn_event_record(&h->marks->base, stream, NULL);
    h->marks->base_s = cairn_now_s();
}

void cairn_hand_mark(struct cairn_handover *h, struct cairn_stream *stream, const char *what, int chunk, int end)
{
    struct mark *m;

    if (!h->marks || h->marks->n == h->marks->room)
        return;
    m = &h->marks->mark[h->marks->n];
    m->m = (struct cairn_handover_mark){
        .what = what, .chunk = chunk, .end = end, .device = stream && m->event.dev, .s = cairn_now_s()};
    if (!m->m.device || cairn_event_record(&m->event, stream, NULL) == CAIRN_OK)
        h->marks->n++;
}

static int by_time(const void *a, const void *b)
{
    const struct cairn_handover_mark *x = a, *y = b;

    return (x->s > y->s) - (x->s < y->s);
}

enum cairn_status cairn_handover_marks(struct cairn_handover *h, struct cairn_handover_mark **out, int *n, struct cairn_error *err)
{
    struct cairn_handover_mark *all = calloc(h->marks ? (size_t)h->marks->n + 1 : 1, sizeof *all);
    enum cairn_status st = CAIRN_OK;

    if (!all)
        return CAIRN_NOMEM(err);
    for (int i = 0; h->marks && i < h->marks->n; i++) {
        double ms = 0;

        all[i] = h->marks->mark[i].m;
        if (!all[i].device)
            continue;
        TRY(cairn_event_ms(&h->marks->base, &h->marks->mark[i].event, &ms, err));
        all[i].s = h->marks->base_s + ms * 1e-3;
    }
    *n = h->marks ? h->marks->n : 0;
    qsort(all, (size_t)*n, sizeof *all, by_time);
    *out = all;
    all = NULL;
out:
    free(all);
    return st;
}
