/* model_flash_test.c - model_test on GLM-5.3-Flash's kind of layers, with a LoRA on every projection of KDA, too. */
#include "flash.h"

#define SPARSE(t, backend, threads, adapter) flash_open(t, backend, threads, FLASH_MINI, adapter)
#define DENSE(t, backend, threads, adapter)  flash_open(t, backend, threads, FLASH_SMOOTH, adapter)
#define UNDIVIDED "num_attention_heads"
#define STEP      0.002 /* scales of the mixing weights bend soon, and the model amplifies what rounding does */
#define NEAR      0.02
#include "model_test.c"
