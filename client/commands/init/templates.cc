#include "client/commands/init/templates.h"

namespace scalelab::client {
namespace {

constexpr char kScaling[] =
    R"(# How much faster does a model train with more ranks? Check this file with `scalelab study validate FILE`,
# look at what it would run with `scalelab study plan FILE`, then queue it with `scalelab study submit FILE`.
study: scaling

# Equal in all cells.
fixed:
  model: resnet20             # also: resnet50, mobilenet_v2, gpt-nano ... (`scalelab study keys model`)
  dataset: synthetic          # needs no files; cifar10 and imagefolder need data_dir
  train_samples: 4096
  epochs: 1

# The axes of the study. Its cells are the product of all values.
matrix:
  engine: [native/ddp]        # add engines to compare them (`scalelab cluster frameworks`)
  ranks: [1, 2]               # or {pow2: [1, 8]} for 1, 2, 4, 8

# strong: the batch of a step is constant, and the ranks divide it. weak: the batch of each rank is constant.
scaling: {mode: strong, global_batch: 64}

# The number of runs of every cell. Intervals need at least 2; 5 show differences of a few percent.
repeats: 3
seed: 1

# What one run needs. The defaults are one node and one core a rank.
resources: {cpus_per_rank: 1, time: 30m}
)";

constexpr char kScript[] =
    R"(# Your own PyTorch script, with a parameter of your own. Check it with `scalelab study validate FILE`, then queue it
# with `scalelab study submit FILE`. `scalelab plot last --y train/loss --by params.dropout` draws its learning curves.
study: my-script

fixed:
  engine: custom
  # {params.NAME} and {KEY} are replaced by their values. A word that begins with ./ is relative to this file.
  # python3 must have the packages of the script, here torch and scalelab: name that of an environment by its path, such as
  # /shared/venv/bin/python3.
  command: [python3, ./train.py, "--dropout={params.dropout}", "--epochs={epochs}"]
  epochs: 2

matrix:
  ranks: [1, 2]               # every rank is a process of the script; MASTER_ADDR, RANK and so on are set
  params: {dropout: [0.1, 0.5]}

scaling: {mode: weak, batch_per_rank: 32}
repeats: 2
resources: {time: 10m}
)";

constexpr char kTrain[] =
    R"("""A small training that scalelab can run with several ranks. Replace the model and the data by your own."""
import argparse

import torch
import torch.distributed as dist
from scalelab import events  # pip install /usr/share/scalelab/python/scalelab-*.whl

parser = argparse.ArgumentParser()
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=1)
arguments = parser.parse_args()

dist.init_process_group("gloo")  # scalelab has set MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE
torch.manual_seed(dist.get_rank())
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Dropout(arguments.dropout),
                            torch.nn.Linear(64, 1))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.randn(1024, 16)
y = x.sum(dim=1, keepdim=True)

with events.run(total_steps=32 * arguments.epochs) as run:
    for epoch in range(arguments.epochs):
        for batch, target in zip(x.split(32), y.split(32)):
            loss = torch.nn.functional.mse_loss(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.step(loss=loss.item())
dist.destroy_process_group()
)";

constexpr char kMpi[] =
    R"(# A benchmark that writes its figures to its output, here NetPIPE between two ranks of MPI (Debian's package
# netpipe-openmpi). Replace command and the regular expressions by those of your program.
study: benchmark

fixed:
  engine: custom
  command: [NPopenmpi, -u, "{params.largest}"]
  launcher: mpirun            # also: plain, torchrun, srun
  ranks: 2

matrix:
  params.largest: [1024, 1048576]

scaling: {mode: weak, batch_per_rank: 1}
repeats: 3

# A figure is what the group `value` (or the only group) of the expression matches. `per: step` makes a series.
measure:
  extract:
    - {metric: net/usec,       regex: '(?P<step>\d+) bytes .* (?P<value>[\d.]+) usec', per: step}
    - {metric: run/throughput, regex: '([\d.]+) Mbps', take: max}
  success: exit_status

resources: {time: 10m}
)";

constexpr char kCommunication[] =
    R"(# What does communication cost? Each cell gets two more runs: one without communication, one that communicates after backward.
# `scalelab curve last` shows the exposed and the hidden part, `scalelab curve last --factors` shows why it stops scaling.
study: communication

fixed:
  model: resnet20
  dataset: synthetic
  train_samples: 4096
  epochs: 1

matrix:
  engine: [native/ddp]
  ranks: [1, 2]

scaling: {mode: weak, batch_per_rank: 32}
measure: {communication: true}

# Repeats are added until the intervals are narrow enough.
repeats: {min: 3, max: 8, until: {half_width: 3%}}
resources: {time: 30m}
)";

}  // namespace

const std::vector<StudyTemplate>& StudyTemplates() {
  static const auto* const templates = new std::vector<StudyTemplate>{
      {"scaling", "a built-in model on more and more ranks", kScaling},
      {"script", "your own PyTorch script, with a parameter of your own", kScript, "train.py", kTrain},
      {"benchmark", "an MPI program whose output has the figures", kMpi},
      {"communication", "the cost of communication, with as many repeats as it needs", kCommunication}};
  return *templates;
}

}  // namespace scalelab::client
