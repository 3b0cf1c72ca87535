// A stand-in for CANN's header of this name. It is here to be found, and to be one of the files that a compilation
// reads: what it declares is what the emulated compiler knows anyway.
#pragma once

#include "asc_fp16.h"

struct bfloat16_t {
  uint16_t bits;
};
