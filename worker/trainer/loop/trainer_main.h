// The program scalelab-trainer: one rank of one run. Wiring only; read loop/train_loop.cc next.
#pragma once

namespace scalelab::trainer {

// Runs one rank and ends the process with the exit status of the program. With a sanitizer it returns the
// status instead.
int TrainerMain(int argc, char** argv);

}  // namespace scalelab::trainer
