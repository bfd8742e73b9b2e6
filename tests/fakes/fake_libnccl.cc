// The part of NCCL that its profiler plug-in meets: a mask, and a version that the test sets.

#include "fakes/fake_libnccl.h"

extern "C" {

int fake_nccl_mask = -1;
int fake_nccl_version = 0;

int ncclGetVersion(int* version) {
  if (fake_nccl_version == 0) return 1;
  *version = fake_nccl_version;
  return 0;
}

}  // extern "C"
