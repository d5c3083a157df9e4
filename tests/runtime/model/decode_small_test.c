/* decode_small_test.c - decode_test in small, for the emulated GPU: sampling call by call, replayed from graphs where the back-end has
 * them, against the packed forward. Bits.
 */
#define MAX_SEQ 4
#define MAX_LEN 12
#define ONLY    "test_sampled*"
#include "decode_test.c"
