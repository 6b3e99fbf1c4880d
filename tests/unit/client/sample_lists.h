// Answers of a server for the tables of lists, runs and studies. In each list, the first row has long values, and
// the second row has empty cells and wide Unicode characters.
#pragma once

#include "absl/strings/str_cat.h"
#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"
#include "tests/fakes/fake_services.h"

namespace scalelab::client {

inline constexpr char kLongUser[] = "a-user-with-a-long-name@physics.example.org";
inline constexpr char kWideUser[] = "張偉";

inline void AddTokens(fakes::FakeServices& server) {
  for (const bool full : {true, false}) {
    scalelab::v1::Token& token = server.tokens.emplace_back();
    token.set_name(absl::StrCat("tokens/", full ? 1000 : 7));
    token.set_user(full ? kLongUser : kWideUser);
    token.set_scope(full ? scalelab::v1::SUBMIT_SCOPE : scalelab::v1::READ_SCOPE);
    token.mutable_create_time()->set_seconds(1'795'000'000);
    if (!full) continue;
    token.set_description("dashboard in a browser at 2001:db8:85a3::8a2e:370:7334");
    token.mutable_expire_time()->set_seconds(1'795'000'000);
    token.mutable_last_use_time()->set_seconds(1'795'000'000);
  }
}

inline void AddAudit(fakes::FakeServices& server) {
  for (const bool full : {true, false}) {
    auto& entry = server.audit.emplace_back();
    entry.set_user(full ? kLongUser : kWideUser);
    entry.set_source(full ? "personal token 17" : "socket");
    entry.set_address(full ? "2001:db8:85a3::8a2e:370:7334" : "local");
    entry.set_action(full ? "SetStudyPriority" : "SetDrain");
    entry.set_target(full ? "studies/1234567" : "");
    entry.set_result(full ? "PERMISSION_DENIED" : "OK");
    entry.set_detail(full ? "only admins and the owner of a study may change its priority"
                          : "新しいスイッチ");
    entry.set_count(full ? 1'000'000 : 1);
    entry.mutable_time()->set_seconds(1'795'000'000);
  }
}

inline void AddUsage(fakes::FakeServices& server) {
  server.usage.set_half_life_seconds(604'800);
  for (const bool full : {true, false}) {
    auto* usage = server.usage.add_usages();
    usage->set_user(full ? kLongUser : kWideUser);
    if (!full) continue;
    usage->set_decayed_node_seconds(1e8);
    usage->set_node_seconds(1e9);
    usage->set_gpu_seconds(1e9);
    usage->set_gpu_seconds_week(1e9);
    usage->set_pending_allocations(4);
    usage->set_running_allocations(2);
    usage->set_running_runs(16);
  }
}

inline void AddQueue(fakes::FakeServices& server) {
  for (const bool full : {true, false}) {
    auto* waiting = server.queue.add_entries();
    waiting->set_position(full ? 1 : 2);
    waiting->set_study(full ? "studies/1234567" : "studies/8");
    waiting->set_display_name(full ? "resnet50-imagenet-strong-scaling" : "分散学習のスケーリング");
    waiting->set_owner(full ? kLongUser : kWideUser);
    waiting->set_partition(full ? "accelerated-h100-large" : "");
    waiting->set_priority(full ? 100 : 0);
    waiting->set_owner_usage(full ? 1e8 : 0);
    waiting->set_queued_runs(full ? 100'000 : 1);
    waiting->set_reason(full ? "the limit of 4 pending allocations of this user in this partition is reached"
                             : "");
  }
}

inline void AddCluster(fakes::FakeServices& server) {
  scalelab::v1::GetClusterResponse& cluster = server.cluster;
  cluster.set_version("0.1.0+g1234567");
  cluster.set_scheduler("slurm");
  cluster.mutable_start_time()->set_seconds(1'795'000'000);
  cluster.set_scheduler_error("squeue timed out after 20 s: slurmctld on login1 does not answer");
  cluster.mutable_scheduler_error_time()->set_seconds(1'795'000'100);
  cluster.mutable_drain_time()->set_seconds(1'795'000'000);
  cluster.set_drain_reason("the new switch of rack 12 is installed; runs begin again on Monday");
  cluster.set_queued_runs(100'000);
  cluster.set_running_attempts(3);
  for (const bool full : {true, false}) {
    auto* allocation = cluster.add_allocations();
    allocation->set_name(full ? "allocations/4a0d5b6c7d8e9f00" : "allocations/5b");
    allocation->set_state(full ? scalelab::v1::Allocation::RUNNING : scalelab::v1::Allocation::PENDING);
    allocation->set_study("studies/1234567");
    allocation->set_nodes(full ? 128 : 1);
    allocation->set_slots_per_node(8);
    allocation->mutable_create_time()->set_seconds(1'795'000'000);
    allocation->set_reason(full ? "" : "パーティションの資源を待つ, waits for resources of the partition");
    auto* node = cluster.add_nodes();
    node->set_name(full ? "compute-rack12-node034" : "n7");
    node->set_state(full ? "allocated" : "drained");
    node->add_partitions("accelerated");
    node->set_reason(full ? "" : "カーネルの更新, back on Monday");
    node->set_cpus(256);
    node->set_cpus_allocated(full ? 128 : 0);
    auto* worker = cluster.add_workers();
    worker->set_node(node->name());
    worker->set_allocation(allocation->name());
    worker->set_version("0.1.0+g1234567");
    worker->set_cpus(256);
    auto* avoided = cluster.add_avoided_nodes();
    avoided->set_name(node->name());
    avoided->set_failures(full ? 3 : 1);
    avoided->set_reason(full ? "worker lost: the node did not answer for 60 seconds" : "ディスクが一杯");
    avoided->mutable_since_time()->set_seconds(1'795'000'000);
    avoided->mutable_until_time()->set_seconds(1'795'001'800);
    auto* partition = cluster.add_partitions();
    partition->set_name(full ? "accelerated-h100-large" : "cpu");
    partition->set_is_default(full);
    partition->set_state("UP");
    partition->set_max_time_seconds(full ? 172'800 : 0);
    partition->set_nodes(full ? 1024 : 1);
    if (!full) continue;
    allocation->set_external_id("12345678");
    allocation->set_run("studies/1234567/runs/12345678");
    for (const char* name : {"compute-rack12-node034", "compute-rack12-node035"})
      allocation->add_node_names(name);
    allocation->mutable_end_time()->set_seconds(1'795'086'400);
    for (const char* name : {"accelerated-large", "development"}) node->add_partitions(name);
    node->set_memory_mib(1'000'000);
    node->set_gpus(8);
    node->set_gpus_allocated(4);
    for (int gpu = 0; gpu < 4; ++gpu) worker->add_gpus("NVIDIA H100 80GB HBM3");
    worker->mutable_last_seen_time()->set_seconds(1'795'000'000);
  }
}

inline void AddPruned(fakes::FakeServices& server) {
  for (const bool full : {true, false}) {
    auto* removed = server.pruned.add_removed();
    removed->set_rule(full ? "points older than 365 days" : "files older than 30 days");
    if (!full) continue;
    removed->set_studies(1234);
    removed->set_points(1'234'567'890);
    removed->set_directories(56'789);
    removed->set_bytes(987'654'321'000);
  }
  server.pruned.set_database_bytes_before(98'765'432'100);
  server.pruned.set_database_bytes_after(8'765'432'100);
}

inline void AddReasons(fakes::FakeServices& server) {
  using scalelab::v1::Reason;
  Reason& away = server.reasons.emplace_back();
  away.set_kind(Reason::SCHEDULER_AWAY);
  away.set_message("the scheduler does not answer: squeue timed out");
  away.mutable_since_time()->set_seconds(1'795'000'110);
  away.mutable_next_try_time()->set_seconds(1'795'000'215);
  Reason& pending = server.reasons.emplace_back();
  pending.set_kind(Reason::SCHEDULER_PENDING);
  pending.set_message(
      "job 4711 in partition accelerated-h100-large waits at the scheduler: ReqNodeNotAvail, "
      "UnavailableNodes:compute-rack12-node034");
  pending.set_subject("allocations/4a0d5b6c7d8e9f00");
  pending.mutable_since_time()->set_seconds(1'794'900'000);
  Reason& behind = server.reasons.emplace_back();
  behind.set_kind(Reason::BEHIND_STUDY);
  behind.set_message("study 分散学習 of 張偉 has a higher priority");
  behind.set_subject("studies/8");
}

// Gives the study what `study show` shows in addition to the list of studies.
inline void AddDetails(scalelab::v1::Study& study) {
  study.set_owner(kLongUser);
  study.set_pause_reason("3 consecutive attempts failed with storage_error: /scratch is full");
  study.set_held(true);
  study.set_priority(10);
  auto& origin = *study.mutable_origin();
  origin.set_server("https://scalelab.physics.example.org");
  origin.set_study("studies/1234567");
  origin.set_imported_by(kWideUser);
  origin.mutable_import_time()->set_seconds(1'795'000'000);
  origin.set_sha256("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08");
  auto& spec = *study.mutable_spec();
  auto& fixed = *spec.mutable_fixed()->mutable_fields();
  fixed["model"].set_string_value("vision-transformer-base");
  fixed["dataset"].set_string_value("imagefolder");
  fixed["params.comment"].set_string_value("学習率の比較");
  auto* engines = spec.add_matrix();
  engines->set_key("engine");
  for (const char* engine : {"pytorch/fully-sharded", "horovod/tensorflow", "native/ddp"})
    engines->add_values()->set_string_value(engine);
  auto* ranks = spec.add_matrix();
  ranks->set_key("ranks");
  for (int count = 1; count <= 1024; count *= 2) ranks->add_values()->set_number_value(count);
  spec.set_repeats(5);
  spec.set_seed(42);
  spec.mutable_resources()->set_partition("accelerated-h100-large");
  spec.mutable_limits()->set_concurrent_allocations(2);
}

// Gives the run what `run show` shows in addition to the list of runs: two failed attempts.
inline void AddDetails(scalelab::v1::Run& run) {
  run.set_position(17);
  run.set_fingerprint("a1b2c3d4e5f6");
  for (const bool first : {true, false}) {
    auto& attempt = *run.add_attempts();
    attempt.set_number(first ? 1 : 2);
    attempt.set_state(scalelab::v1::Attempt::FAILED);
    attempt.set_cause(first ? scalelab::v1::Attempt::ALLOCATION_CANCELLED
                            : scalelab::v1::Attempt::OUT_OF_MEMORY);
    attempt.set_message(first ? "張偉 cancelled job 12345678 while its two ranks were exchanging gradients"
                              : run.message());
    if (!first) attempt.set_exit_status(137);
    for (const char* node : {"compute-rack12-node034", "compute-rack12-node035"}) attempt.add_nodes(node);
    attempt.mutable_assign_time()->set_seconds(1'795'000'000);
    attempt.mutable_finish_time()->set_seconds(1'795'000'042);
    attempt.set_directory(absl::StrCat("/scratch/scalelab/runs/12/401/", attempt.number()));
    if (first) continue;
    attempt.set_malformed_lines(3);
    attempt.set_first_malformed_line("rank 0, line 17: is not JSON");
    for (int node = 0; node < attempt.nodes_size(); ++node) {
      auto& info = *attempt.add_node_infos();
      info.set_cpus(256);
      info.set_cpu_model("AMD EPYC 9754 128-Core Processor");
      info.set_memory_bytes(1'000'000'000'000);
      for (int gpu = 0; gpu < 4; ++gpu) info.add_gpus("NVIDIA H100 80GB HBM3");
      info.set_os("Debian GNU/Linux 12 (bookworm), Linux 6.1.0-28-amd64");
      (*info.mutable_software())["trainer"] = "0.1.0+g1234567";
      (*info.mutable_software())["mpi"] = "Open MPI 4.1.4";
    }
    auto& code = *attempt.mutable_code();
    code.set_git_root("/home/ada/projects/vision-transformer-scaling");
    code.set_git_commit("708d945c0ffee0123456789abcdef0123456789a");
    code.set_git_dirty(false);
  }
  (*run.mutable_summary())["run/step_seconds"] = 0.3151;
  (*run.mutable_summary())["layer4.2.conv3/gradient_norm_before_clipping"] = 1.5e-7;
}

}  // namespace scalelab::client
