/* listed.h - is a word one of a list of words? */
#ifndef CAIRN_GRADE_LISTED_H
#define CAIRN_GRADE_LISTED_H

#include <stddef.h>
#include <string.h>

/* Its place, from 1, if p[0, len) is one of the n words of the list; else 0. */
static inline int cairn_listed(const char *const *list, size_t n, const char *p, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(list[i]) == len && memcmp(list[i], p, len) == 0)
            return (int)i + 1;
    return 0;
}
#define CAIRN_LISTED(list, p, len) cairn_listed(list, sizeof(list) / sizeof *(list), p, len)

#endif
