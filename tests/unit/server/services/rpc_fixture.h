// A gRPC server over real sockets, with a scheduler that does nothing and a store whose reads can be held.
#pragma once

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <limits>
#include <new>
#include <thread>

#include "db/sqlite_store.h"
#include "scalelab/v1/cluster.grpc.pb.h"
#include "scalelab/v1/run.grpc.pb.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "scalelab/v1/worker.grpc.pb.h"
#include "server/services/rpc_server.h"
#include "tests/unit/server/core/forwarding_store.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {

class IdleScheduler final : public Scheduler {
 public:
  std::string name() const override { return is_local ? "local" : "idle"; }
  Capacity capacity() const override {
    Capacity capacity;
    capacity.slots = slots;
    return capacity;
  }
  absl::StatusOr<std::string> Submit(const JobRequest&) override {
    if (refuses) return absl::ResourceExhaustedError("the account lab-7 has no GPU hours left");
    return "1";
  }
  std::string Script(const JobRequest&) const override { return ""; }
  absl::StatusOr<std::vector<JobStatus>> Poll(const std::vector<std::string>&) override {
    return std::vector<JobStatus>();
  }
  absl::StatusOr<ClusterView> View() override {
    if (away) return absl::UnavailableError("sinfo found no controller");
    ClusterView view;
    view.partitions = {{"gpu", true, "UP", absl::Hours(2), 1, 1}};
    view.nodes = {{"n1", {"gpu"}, "MIXED", "", 8, 3, 16000, 2, 1}};
    return view;
  }
  absl::Status Cancel(const std::vector<std::string>&) override { return absl::OkStatus(); }
  std::atomic<bool> away = false, is_local = false, refuses = false;
  std::atomic<int> slots = 0;
};

// Counts reads on the core thread, and holds reads on request.
class WatchedStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  // Holds all reads after the next `reads`.
  void HoldAfter(int reads) {
    absl::MutexLock lock(&mutex_);
    may_pass_ = reads;
  }
  void Release() { HoldAfter(std::numeric_limits<int>::max()); }
  void WaitForHeldRead() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](int* waiting) { return *waiting > 0; }, &waiting_));
  }
  // Returns the number of reads that are held.
  int held() {
    absl::MutexLock lock(&mutex_);
    return waiting_;
  }
  // Lets reads fail like an allocation for which there is no memory.
  void RunOutOfMemory(bool on) { out_of_memory_ = on; }
  void FailCommits(bool fail) { fail_commits_ = fail; }
  absl::Status Commit(const db::WriteBatch& batch) override {
    return fail_commits_ ? absl::UnavailableError("the disk is full") : ForwardingStore::Commit(batch);
  }
  void set_core(std::thread::id core) {
    absl::MutexLock lock(&mutex_);
    core_ = core;
  }
  int reads_on_core() {
    absl::MutexLock lock(&mutex_);
    return reads_on_core_;
  }
  int reads() {
    absl::MutexLock lock(&mutex_);
    return reads_;
  }

 private:
  void BeforeRead() override {
    if (out_of_memory_) throw std::bad_alloc();
    absl::MutexLock lock(&mutex_);
    if (std::this_thread::get_id() == core_) ++reads_on_core_;
    ++waiting_;
    mutex_.Await(absl::Condition(
        +[](int* may_pass) { return *may_pass > 0; }, &may_pass_));
    --waiting_;
    --may_pass_;
    ++reads_;
  }

  std::atomic<bool> fail_commits_ = false, out_of_memory_ = false;
  absl::Mutex mutex_;
  int may_pass_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<int>::max();
  int reads_ ABSL_GUARDED_BY(mutex_) = 0;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  int reads_on_core_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread::id core_ ABSL_GUARDED_BY(mutex_);
};

// The clocks of this machine, of which a test can advance the steady one.
class AdvancedClock final : public Clock {
 public:
  absl::Time Wall() const override { return System().Wall(); }
  absl::Duration Steady() const override { return System().Steady() + absl::Seconds(seconds.load()); }
  std::atomic<int64_t> seconds = 0;
};

class RpcServerTest : public testing::Test {
 protected:
  RpcServerTest() {
    std::string pattern = "/tmp/scalelab-rpc-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    store_ = std::make_unique<WatchedStore>(*db::OpenSqliteStore({directory_ + "/test.db"}));
    CoordinatorOptions options;
    options.clock = &clock_;
    options.secret_for = [](const std::string&) { return ""; };
    options.new_token = [this] { return absl::StrCat("token-", ++tokens_); };
    coordinator_ = std::make_unique<Coordinator>(std::move(options), *store_, scheduler_);
    EXPECT_TRUE(coordinator_->Start().ok());
    Serve(Options());
  }
  ~RpcServerTest() override {
    coordinator_->Stop();
    rpc_.reset();
    std::filesystem::remove_all(directory_);
  }

  RpcServerOptions Options() const {
    RpcServerOptions options;
    options.listen = {"unix:" + directory_ + "/socket", "127.0.0.1:0"};
    options.version = "1.2.3";
    return options;
  }
  // Replaces the server by one with these options.
  void Serve(const RpcServerOptions& options) { Serve(options, frameworks_); }
  void Serve(const RpcServerOptions& options, Frameworks& frameworks) {
    rpc_.reset();
    auto rpc = StartRpcServer(options, *coordinator_, *store_, scheduler_, frameworks, auth_);
    ASSERT_TRUE(rpc.ok()) << rpc.status();
    rpc_ = *std::move(rpc);
  }

  std::shared_ptr<grpc::Channel> Unix() { return Connect(0); }
  std::shared_ptr<grpc::Channel> Tcp() { return Connect(1); }
  std::shared_ptr<grpc::Channel> Connect(int address) {
    return grpc::CreateChannel(rpc_->addresses()[address], grpc::InsecureChannelCredentials());
  }
  static std::unique_ptr<grpc::ClientContext> Context(const std::string& bearer = "") {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    if (!bearer.empty()) context->AddMetadata("authorization", "Bearer " + bearer);
    return context;
  }
  // Submits a study with one run.
  void Submit() {
    v1::CreateStudyRequest create;
    *create.mutable_spec() = World::Spec({1});
    v1::CreateStudyResponse created;
    ASSERT_TRUE(v1::StudyService::NewStub(Unix())->CreateStudy(Context().get(), create, &created).ok());
  }
  // Returns whether the core thread answers within five seconds.
  bool CoreAnswers() {
    auto answered = std::make_shared<std::promise<std::thread::id>>();
    auto future = answered->get_future();
    coordinator_->Read([answered](const State*) { answered->set_value(std::this_thread::get_id()); });
    if (future.wait_for(std::chrono::seconds(5)) != std::future_status::ready) return false;
    store_->set_core(future.get());
    return true;
  }
  grpc::Status List(std::shared_ptr<grpc::Channel> channel, const std::string& bearer = "") {
    auto context = Context(bearer);
    v1::ListStudiesResponse response;
    return v1::StudyService::NewStub(channel)->ListStudies(context.get(), {}, &response);
  }
  // Sends bytes to any method, as a program without generated stubs does. Returns the first response.
  std::string Call(const std::string& method, const std::string& bytes) {
    return Call(Unix(), method, bytes);
  }
  std::string Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                   const std::string& bytes) {
    grpc::GenericStub stub(channel);
    auto context = Context();
    grpc::CompletionQueue queue;
    void* tag = nullptr;
    bool ok = false;
    auto call = stub.PrepareCall(context.get(), method, &queue);
    call->StartCall(&tag);
    queue.Next(&tag, &ok);
    const grpc::Slice slice(bytes);
    call->Write(grpc::ByteBuffer(&slice, 1), &tag);
    queue.Next(&tag, &ok);
    grpc::ByteBuffer answer;
    call->Read(&answer, &tag);
    queue.Next(&tag, &ok);
    std::string text;
    std::vector<grpc::Slice> slices;
    if (ok && answer.Dump(&slices).ok()) {
      for (const grpc::Slice& s : slices) text.append(reinterpret_cast<const char*>(s.begin()), s.size());
    }
    context->TryCancel();
    grpc::Status status;
    call->Finish(&status, &tag);
    queue.Next(&tag, &ok);
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
    return text;
  }

  std::string directory_;
  std::atomic<int> tokens_ = 0;
  IdleScheduler scheduler_;
  Frameworks frameworks_{{}};
  Auth auth_{"right-token", "key"};
  AdvancedClock clock_;
  std::unique_ptr<WatchedStore> store_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<RpcServer> rpc_;
};

}  // namespace scalelab::server
