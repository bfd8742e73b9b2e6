// Records a LibTorch training loop: forward, backward and optimizer of each step.
//
//     train_loop DIR [STEPS]
//
// Prints the path of the trace; `smon info DIR` shows what is in it.

#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "smon_rt.h"

namespace {

/// A span from here to the end of the scope; aborted if an exception leaves it.
class Span {
 public:
  explicit Span(smon_kind kind, std::int16_t microbatch = -1) : exceptions_(std::uncaught_exceptions()) {
    smon_span_ids ids = SMON_NO_IDS;
    ids.microbatch = microbatch;
    token_ = smon_begin(kind, &ids);
  }
  ~Span() {
    if (std::uncaught_exceptions() > exceptions_) {
      smon_abort(token_);
    } else {
      smon_end(token_);
    }
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  int exceptions_;
  smon_token token_ = 0;
};

constexpr std::int16_t kMicrobatches = 2;

double train_step(std::int64_t step, torch::nn::Sequential& model, torch::optim::SGD& optimizer) {
  smon_step_begin(step);
  double sum = 0;
  for (std::int16_t microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
    torch::Tensor loss;
    {
      const Span span(SMON_FORWARD_COMPUTE, microbatch);
      const torch::Tensor input = torch::ones({32, 64});
      loss = model->forward(input).square().mean();
    }
    {
      const Span span(SMON_BACKWARD_COMPUTE, microbatch);
      loss.backward();
    }
    sum += loss.item<double>();
  }
  {
    const Span span(SMON_OPTIMIZER);
    optimizer.step();
    optimizer.zero_grad();
  }
  smon_step_end();
  return sum / kMicrobatches;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s DIR [STEPS]\n", argv[0]);
    return 2;
  }
  const long steps = argc > 2 ? std::strtol(argv[2], nullptr, 10) : 10;

  smon_config config;
  smon_config_init(&config);
  config.trace_dir = argv[1];
  if (smon_start(&config) != SMON_OK || smon_last_error()[0] != '\0') {
    std::fprintf(stderr, "not recording as asked: %s\n", smon_last_error());
  }
  smon_set_fact("version.torch", TORCH_VERSION);

  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(64, 64), torch::nn::ReLU(), torch::nn::Linear(64, 1));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01));
  const std::uint16_t loss_name = smon_intern_name("loss");
  for (long step = 0; step < steps; ++step) smon_metric(loss_name, train_step(step, model, optimizer));

  smon_status status = {};
  status.struct_size = sizeof status;
  smon_status_read(&status);
  std::printf("%s\n", status.file_path);
  smon_stop();
  return 0;
}
