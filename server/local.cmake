# What the coordinator needs of its own machine: no proto, no database, no RPC.
find_package(spdlog REQUIRED)
scalelab_room(scalelab_local scheduler.cc local_scheduler.cc watched_job.cc local_job.cc data_dir.cc socket.cc)
target_link_libraries(scalelab_local PUBLIC absl::status absl::statusor absl::strings absl::time
  PRIVATE nlohmann_json::nlohmann_json spdlog::spdlog Threads::Threads)

# The command line; the nearest name of a misspelled key comes from scalelab_study.
find_package(CLI11 REQUIRED)
find_package(yaml-cpp REQUIRED)
scalelab_room(scalelab_config config.cc config_environments.cc)
target_link_libraries(scalelab_config PUBLIC absl::status absl::statusor absl::strings absl::time
  PRIVATE scalelab_local scalelab_study CLI11::CLI11 yaml-cpp)

# Slurm through its own programs.
scalelab_room(scalelab_slurm slurm_commands.cc slurm_queue.cc slurm_words.cc slurm_errors.cc slurm_view.cc
              slurm_script.cc slurm_client.cc slurm_scheduler.cc)
target_link_libraries(scalelab_slurm PUBLIC scalelab_local absl::status absl::statusor absl::strings absl::time
  PRIVATE absl::cleanup spdlog::spdlog)

# Where Python frameworks are, and whether they work.
scalelab_room(scalelab_frameworks frameworks.cc framework_probe.cc)
target_link_libraries(scalelab_frameworks PUBLIC scalelab_study absl::any_invocable absl::time
  PRIVATE scalelab_slurm nlohmann_json::nlohmann_json spdlog::spdlog Threads::Threads)
