#pragma once

// Looked up by name in a library that a test loads, as many as it wants by copies.
extern "C" {
extern int fake_nccl_mask;     // what the plug-in of this library is handed
extern int fake_nccl_version;  // as NCCL counts: 22907 is 2.29.7; 0: it does not say
int ncclGetVersion(int* version);
}
