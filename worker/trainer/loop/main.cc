#include "worker/trainer/loop/trainer_main.h"

int main(int argc, char** argv) { return scalelab::trainer::TrainerMain(argc, argv); }
