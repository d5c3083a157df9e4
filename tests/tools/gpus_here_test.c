/* gpus_here_test.c - GPUs by the kernel's own files, from trees made up here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/str.h"
#include "tools/gpus_here.h"

static void put(const char *root, const char *dir, const char *name, const char *text)
{
    char *at = cairn_format("mkdir -p %s/%s", root, dir), *path = cairn_format("%s/%s/%s", root, dir, name);
    FILE *f;

    assert_int_equal(system(at), 0);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    free(at);
    free(path);
}

static void finds(void **state)
{
    char root[] = "/tmp/cairn-gpus-XXXXXX", text[200];

    (void)state;
    assert_non_null(mkdtemp(root));
    assert_int_equal(cairn_gpus_here(root, text, sizeof text), 0);
    assert_string_equal(text, "");
    put(root, "sys/bus/pci/devices/0000:00:01.0", "vendor", "0x8086\n"); /* a GPU of somebody else */
    put(root, "sys/bus/pci/devices/0000:00:01.0", "class", "0x030000\n");
    put(root, "sys/bus/pci/devices/0000:00:02.0", "vendor", "0x10de\n"); /* a switch */
    put(root, "sys/bus/pci/devices/0000:00:02.0", "class", "0x068000\n");
    assert_int_equal(cairn_gpus_here(root, text, sizeof text), 0);
    put(root, "sys/bus/pci/devices/0000:1b:00.0", "vendor", "0x10de\n");
    put(root, "sys/bus/pci/devices/0000:1b:00.0", "class", "0x030200\n");
    assert_int_equal(cairn_gpus_here(root, text, sizeof text), 1);
    assert_string_equal(text, "1 of NVIDIA (no driver is loaded)");
    put(root, "proc/driver/nvidia/gpus/0000:1b:00.0", "information", "Model: \t\t NVIDIA H200\nIRQ:   \t\t 18\n");
    put(root, "proc/driver/nvidia/gpus/0000:5d:00.0", "information", "IRQ: 1\n");
    assert_int_equal(cairn_gpus_here(root, text, sizeof text), 2);
    assert_string_equal(text, "NVIDIA H200, NVIDIA");
    assert_int_equal(cairn_gpus_here(root, text, 12), 2);
    assert_string_equal(text, "NVIDIA H200");
    {
        struct cairn_error err;

        assert_int_equal(cairn_tree_remove(root, &err), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(finds)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
