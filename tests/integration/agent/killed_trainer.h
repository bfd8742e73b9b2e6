#pragma once

#include <cstdint>
#include <string>

#include "killed_job.h"

namespace smon_rt {

struct KilledTrainer {
  std::string folder;  // of agents
  std::size_t rank = 0;
  std::uint32_t attempt = 0;
};

/// In the forked child: restores, trains until it is killed, or to the end of the job. What is wrong is in the store.
[[noreturn]] void run_killed_trainer(KilledJob::Store& store, const KilledTrainer& trainer);

/// The first failure counts.
void fail_job(KilledJob::Store& store, const std::string& why);

}  // namespace smon_rt
