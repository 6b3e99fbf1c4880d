// What to train: RunSpec of proto/scalelab/v1/run.proto as a plain struct, read from its protobuf JSON
// without protobuf.
#pragma once

#include <cstdint>
#include <string>

namespace scalelab::trainer {

// Meaning and units of each field stand in run.proto; a field that the file lacks keeps the value given here.
struct TrainingSpec {
  std::string engine = "native/ddp";
  std::string model = "resnet20";
  std::string dataset = "synthetic";
  std::string data_dir;
  std::string precision = "fp32";
  std::string backend = "auto";
  std::string device = "auto";
  int64_t ranks = 1;
  int64_t epochs = 1;
  int64_t max_steps = 0;
  int64_t global_batch = 0;    // 0: batch_per_rank * ranks
  int64_t batch_per_rank = 0;  // 0: global_batch / ranks; both 0: 128
  double learning_rate = 0.1;
  double warmup_start_rate = 0;
  double warmup_epochs = 0;
  std::string lr_schedule = "constant";
  double momentum = 0.9;
  double weight_decay = 1e-4;
  bool decay_norm = true;
  bool augment = true;
  std::string batch_norm = "train";
  int64_t seed = 0;
  int64_t warmup_steps = 0;
  bool evaluate = false;
  double target_accuracy = 0;
  int64_t cpus_per_rank = 1;
  int64_t gpus_per_rank = 0;
  std::string memory_format = "auto";
  int64_t bucket_cap_mib = 25;
  int64_t train_samples = 0;
  int64_t accumulation_steps = 1;
  int64_t first_bucket_cap_mib = 1;
  bool find_unused_parameters = false;
  bool static_graph = false;
  int64_t fusion_threshold_mib = 128;
  double cycle_time_ms = 1;
  int64_t cache_capacity = 1024;
  std::string gradient_compression = "none";
  bool autotune = false;
  double stall_warning_s = 60;
  bool timeline = false;
  std::string all_reduce = "library";
  int64_t image_size = 0;
  int64_t classes = 0;
  std::string last_batch = "drop";
  bool cuda_graph = false;
  bool save_parameters = false;
  double comm_timeout_s = 600;  // of one operation between ranks
};

// Numbers may be JSON numbers or strings (protobuf JSON writes 64-bit integers as strings), unknown fields
// are passed over, batches are completed from each other. Throws TrainerError that names `source`, the field
// and its value.
TrainingSpec ParseTrainingSpec(const std::string& text, const std::string& source);
TrainingSpec ReadTrainingSpec(const std::string& path);

}  // namespace scalelab::trainer
