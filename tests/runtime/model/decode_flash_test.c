/* decode_flash_test.c - decode_test on GLM-5.3-Flash's kind of layers: state, convolution rows and open pools of forks, whole pages or
 * cut ones, sequences on both sides of what the indexer takes whole. Bits.
 */
#include "flash.h"

#define OPEN(t, backend, adapter) flash_open(t, backend, 2, FLASH_MINI, adapter)
#define TOKENS(backend) (strncmp(backend, "guard", 5) ? 8000 : 500)
#include "decode_test.c"
