// A small network, and helpers to train it by hand.
#pragma once

#include <memory>
#include <vector>

#include "worker/trainer/models/model.h"

namespace scalelab::trainer {

// Two convolutions, a bias that `with_bias` enables, and a parameter that is never used.
class SmallModel : public Model {
 public:
  SmallModel() {
    first = register_parameter("first",
                               (0.2 * at::randn({8, 3, 3, 3})).contiguous(at::MemoryFormat::ChannelsLast));
    unused = register_parameter("unused", at::randn({100}));
    second = register_parameter("second",
                                (0.2 * at::randn({4, 8, 3, 3})).contiguous(at::MemoryFormat::ChannelsLast));
    bias = register_parameter("bias", at::zeros({4}));
    register_buffer("statistics", at::randn({3}));
  }
  at::Tensor forward(const at::Tensor& images) override {
    between = at::conv2d(images, first);
    const at::Tensor out = at::conv2d(between.relu(), second).mean({2, 3});
    return with_bias ? out + bias : out;
  }
  bool with_bias = true;
  at::Tensor first, unused, second, bias, between;
};

// Returns models with the same weights in each call. Seeding is necessary because ranks are threads here,
// which share Torch's random generator.
inline std::vector<std::shared_ptr<SmallModel>> EqualModels(int count) {
  at::manual_seed(5);
  std::vector<std::shared_ptr<SmallModel>> models;
  for (int i = 0; i < count; ++i) {
    models.push_back(std::make_shared<SmallModel>());
    const at::NoGradGuard no_grad;
    for (size_t p = 0; p < models[i]->parameters().size(); ++p) {
      models[i]->parameters()[p].copy_(models[0]->parameters()[p]);
    }
  }
  return models;
}

inline at::Tensor Images(int64_t first, int64_t count) {
  static const at::Tensor all = [] {
    at::manual_seed(77);
    return at::randn({256, 3, 8, 8});
  }();
  return all.narrow(0, first, count);
}

inline at::Tensor LossOf(SmallModel& model, const at::Tensor& images) {
  return (model.forward(images) - 0.5).pow(2).mean();
}

}  // namespace scalelab::trainer
