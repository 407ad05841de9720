// prd-train-cuda: one worker of a data-parallel training of Fashion-MNIST whose replica lives on a
// GPU, without a framework. trainer.cc is the part that concerns prd: it does not know where the
// replica is.
#include <cstdio>
#include <exception>

#include "worker/examples/cnn_cuda.h"
#include "worker/examples/cnn_learner.h"
#include "worker/examples/train_args.h"
#include "worker/examples/trainer.h"

int main(int argc, char** argv) {
  example::FashionMnistCudaArgs args;
  int exit_code = 0;
  if (!example::ParseFashionMnistCudaArgs(argc, argv, &args, &exit_code)) return exit_code;
  try {
    example::CnnLearner learner(args.common, args.device < 0
                                                 ? example::MakeHostDevice()
                                                 : example::MakeCudaDevice(args.device));
    return example::RunTrainer("prd-train-cuda", args.common.train, learner);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "prd-train-cuda: %s\n", error.what());
    return 1;
  }
}
