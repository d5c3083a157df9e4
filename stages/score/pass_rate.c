/* pass_rate.c - see pass_rate.h. */
#include "stages/score/pass_rate.h"

#include <stdio.h>

double cairn_pass_rate_at(int64_t n, int64_t c, int64_t j)
{
    double missed = 1;

    if (n - c < j) /* fewer wrong ones than are drawn */
        return 1;
    for (int64_t i = n - c + 1; i <= n; i++) /* C(n-c, j) / C(n, j), factor by factor: binomials would overflow */
        missed *= 1 - (double)j / (double)i;
    return 1 - missed;
}

void cairn_pass_rate_add(struct cairn_pass_rate *p, int64_t n, int64_t c)
{
    p->problems++;
    p->responses += n;
    p->right += c;
    p->solved += c > 0;
    p->all_right += c == n;
    p->most = n > p->most ? n : p->most;
    p->mean += (double)c / (double)n;
    for (int i = 0; i < CAIRN_PASS_RATE_POWERS && (int64_t)1 << i <= n; i++) {
        p->at[i] += cairn_pass_rate_at(n, c, (int64_t)1 << i);
        p->of[i]++;
    }
}

void cairn_pass_rate_join(struct cairn_pass_rate *p, const struct cairn_pass_rate *more)
{
    p->problems += more->problems;
    p->responses += more->responses;
    p->right += more->right;
    p->solved += more->solved;
    p->all_right += more->all_right;
    p->most = more->most > p->most ? more->most : p->most;
    p->mean += more->mean;
    for (int i = 0; i < CAIRN_PASS_RATE_POWERS; i++) {
        p->at[i] += more->at[i];
        p->of[i] += more->of[i];
    }
}

int cairn_pass_rate_metrics(const struct cairn_pass_rate *p, json_t *o)
{
    double problems = p->problems ? (double)p->problems : 1;
    int bad = json_object_set_new(o, "mean_at_k", json_real(p->mean / problems)) ||
              json_object_set_new(o, "pass_at_k", json_real((double)p->solved / problems));

    for (int i = 0; p->most > 1 && i < CAIRN_PASS_RATE_POWERS && p->of[i]; i++) {
        char name[40];

        snprintf(name, sizeof name, "pass_at/%lld", 1LL << i);
        bad |= json_object_set_new(o, name, json_real(p->at[i] / (double)p->of[i]));
    }
    return !bad;
}
