// LibTorch as this room uses it; precompiled once (torch/torch.h takes 15 s a file otherwise).
#pragma once

#include <torch/torch.h>
