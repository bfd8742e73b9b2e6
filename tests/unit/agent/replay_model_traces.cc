// replay_model_traces FILE: does what the traces in a file of tests/model/export_traces.py say, and prints how many of
// them to their end.
#include <nlohmann/json.hpp>

#include <exception>
#include <fstream>
#include <iostream>

#include "modelled_job.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: replay_model_traces FILE\n";
    return 2;
  }
  try {
    std::ifstream file(argv[1]);
    const nlohmann::json document = nlohmann::json::parse(file);
    int whole = 0;
    for (const nlohmann::json& trace : document.at("traces")) {
      const smon_rt::Replayed replayed = smon_rt::replay(trace);
      if (!replayed.difference.empty()) {
        std::cerr << replayed.difference << '\n';
        return 1;
      }
      whole += replayed.is_whole ? 1 : 0;
    }
    std::cout << whole << " of " << document.at("traces").size() << " traces to their end\n";
  } catch (const std::exception& error) {
    std::cerr << argv[1] << ": " << error.what() << '\n';
    return 2;
  }
  return 0;
}
