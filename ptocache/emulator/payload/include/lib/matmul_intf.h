// A stand-in for CANN's header of this name. It is here to be found, and to be one of the files that a compilation
// reads: what it declares is what the emulated compiler knows anyway.
#pragma once

#include "../kernel_operator.h"

namespace matmul {}
