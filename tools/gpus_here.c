/* gpus_here.c - reads <root>/proc/driver/nvidia/gpus (the loaded driver's list, with names); without a driver, the PCI bus. */
#include "tools/gpus_here.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

/* The first line of the file that begins with `key`, behind it; "" if there is none. */
static void line_of(const char *path, const char *key, char *out, size_t n)
{
    FILE *f = fopen(path, "r");
    char line[256];

    out[0] = 0;
    while (f && !out[0] && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key)))
            continue;
        snprintf(out, n, "%s", line + strlen(key) + strspn(line + strlen(key), " \t"));
        out[strcspn(out, "\n")] = 0;
    }
    if (f)
        fclose(f);
}

/* Calls fn for each entry of root/dir, in order of their names; the sum of what it gives. */
static int each_entry(const char *root, const char *dir, int (*fn)(const char *path, struct cairn_str *names), struct cairn_str *names)
{
    struct dirent **e = NULL;
    char *at = cairn_format("%s/%s", root, dir);
    int n = at ? scandir(at, &e, NULL, alphasort) : 0, sum = 0;

    for (int i = 0; i < n; i++) {
        char *path = e[i]->d_name[0] == '.' ? NULL : cairn_format("%s/%s", at, e[i]->d_name);

        if (path)
            sum += fn(path, names);
        free(path);
        free(e[i]);
    }
    free(e);
    free(at);
    return sum;
}

static int of_driver(const char *path, struct cairn_str *names)
{
    char *file = cairn_format("%s/information", path), model[128];

    line_of(file ? file : "", "Model:", model, sizeof model);
    free(file);
    cairn_str_printf(names, "%s%s", names->len ? ", " : "", model[0] ? model : "NVIDIA");
    return 1;
}

/* Vendor NVIDIA, class of display or 3D controllers. */
static int of_bus(const char *path, struct cairn_str *names)
{
    char *vendor = cairn_format("%s/vendor", path), *class = cairn_format("%s/class", path), v[32], c[32];

    (void)names;
    line_of(vendor ? vendor : "", "0x", v, sizeof v);
    line_of(class ? class : "", "0x03", c, sizeof c);
    free(vendor);
    free(class);
    return !strcmp(v, "10de") && c[0];
}

int cairn_gpus_here(const char *root, char *text, size_t n)
{
    struct cairn_str names = {0};
    int count = each_entry(root, "proc/driver/nvidia/gpus", of_driver, &names);

    if (!count && (count = each_entry(root, "sys/bus/pci/devices", of_bus, &names)))
        cairn_str_printf(&names, "%d of NVIDIA (no driver is loaded)", count);
    snprintf(text, n, "%s", cairn_str_z(&names));
    cairn_str_free(&names);
    return count;
}
