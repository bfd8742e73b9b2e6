/* Records a training loop from C: forward, backward and optimizer of each step, into
 * DIR/rank-00000.<run>-<attempt>.smon.
 *
 *     train_loop DIR [STEPS]
 *
 * Prints the path of the trace; `smon info DIR` shows what is in it. Here the library is linked; a program that should
 * run without it can open it by dlopen() and look its functions up instead.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "smon_rt.h"

enum { kMicrobatches = 4, kParameters = 20000 };

static double weights[kParameters];
static double gradients[kParameters];

/* Something that takes time and that no compiler leaves out. */
static double forward(int microbatch) {
  double loss = 0;
  for (int i = 0; i < kParameters; ++i) loss += weights[i] * (double)(i % 7 + microbatch);
  return loss / kParameters;
}

static void backward(double loss) {
  for (int i = 0; i < kParameters; ++i) gradients[i] += loss * 1e-3 + (double)(i % 7) * 1e-6;
}

static void optimize(void) {
  for (int i = 0; i < kParameters; ++i) {
    weights[i] -= 0.1 * gradients[i];
    gradients[i] = 0;
  }
}

static void train_step(int64_t step, uint16_t loss_name) {
  smon_step_begin(step);
  double loss = 0;
  for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
    smon_span_ids ids = SMON_NO_IDS;
    ids.microbatch = (int16_t)microbatch;
    smon_token span = smon_begin(SMON_FORWARD_COMPUTE, &ids);
    loss = forward(microbatch);
    smon_end(span);

    span = smon_begin(SMON_BACKWARD_COMPUTE, &ids);
    backward(loss);
    smon_end(span);
  }
  smon_token span = smon_begin(SMON_OPTIMIZER, NULL);
  optimize();
  smon_end(span);
  smon_metric(loss_name, loss);
  smon_step_end();
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: %s DIR [STEPS]\n", argv[0]);
    return 2;
  }
  const long steps = argc > 2 ? strtol(argv[2], NULL, 10) : 10;

  smon_config config;
  smon_config_init(&config);
  config.trace_dir = argv[1];
  /* A job goes on when recording cannot: say it and train. */
  if (smon_start(&config) != SMON_OK || smon_last_error()[0] != '\0') {
    fprintf(stderr, "not recording as asked: %s\n", smon_last_error());
  }
  smon_set_fact("version.train_loop", "1");
  const uint16_t loss_name = smon_intern_name("loss");

  for (long step = 0; step < steps; ++step) train_step(step, loss_name);

  smon_status status = {0};
  status.struct_size = sizeof status;
  smon_status_read(&status);
  printf("%s\n", status.file_path);
  smon_stop();
  return 0;
}
